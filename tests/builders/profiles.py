"""Profiles of one rank for runs of the fake launcher, whose ranks take no step apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.prediction.collective_times import CollectiveTime, MeasuredTimes
from scalescope.analysis.prediction.jobs import JobInputs, PredictedJob
from scalescope.analysis.prediction.profiles import Gradient, MeasuredProfile, RankProfile, Unit
from scalescope.analysis.prediction.setup import RankLayout
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run
from tests.builders.known_runs import make_trials

GRADIENTS = 4
GRADIENT_BYTES = 1 << 20


def made_profile(samples: int, step_s: float) -> RankProfile:
    """A step of so long: 30 % forward, 60 % backward, the rest optimizer; gradients follow evenly."""
    backward_s = 0.6 * step_s
    parts = range(1, GRADIENTS + 1)
    return RankProfile(
        samples=samples,
        input_s=0.0,
        forward_s=0.3 * step_s,
        backward_s=backward_s,
        optimizer_s=0.1 * step_s,
        gradients=tuple(
            Gradient(size_bytes=GRADIENT_BYTES, ready_s=backward_s * part / GRADIENTS) for part in parts
        ),
        units=tuple(
            Unit(
                name=f"block {part}",
                parameter_bytes=GRADIENT_BYTES,
                forward_s=0.3 * step_s / GRADIENTS,
                backward_s=backward_s / GRADIENTS,
                activation_bytes=1024 * samples,
            )
            for part in parts
        ),
        launch_spread=0.01,
    )


def made_profiles(run: Run) -> tuple[MeasuredProfile, ...]:
    """What `profiles_of` would read, had the ranks of a fake launcher taken their steps apart."""
    profiles: dict[str, MeasuredProfile] = {}
    for result in run.of_status("ok"):
        trial = result.trial
        if trial.is_training and trial.world_size == 1 and not trial.is_ablation:
            steps = result.ranks[0].samples["step_time_s"]
            profile = made_profile(trial.micro_batch_size, sum(steps) / len(steps))
            known = MeasuredProfile(trial=trial, profile=profile, memory_bytes=64 << 20)
            profiles.setdefault(trial.trial_id, known)
    return tuple(profiles.values())


# ---- Profiles and networks with round numbers

MIB = 1 << 20


class PerMib:
    """So many seconds for every MiB, on any number of ranks; remembers what was asked for."""

    def __init__(self, seconds: float, error: float = 0.1) -> None:
        self.seconds = seconds
        self.error = error
        self.asked: list[tuple[str, float, int, RankLayout]] = []

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        self.asked.append((collective, size_bytes, ranks, layout))
        return CollectiveTime(
            time_s=self.seconds * size_bytes / MIB, error=self.error, assumptions=("as per MiB",)
        )


def unit(
    name: str, forward_s: float, backward_s: float, mib: float = 1.0, activation_mib: float = 0.0
) -> Unit:
    return Unit(
        name=name,
        parameter_bytes=int(mib * MIB),
        forward_s=forward_s,
        backward_s=backward_s,
        activation_bytes=int(activation_mib * MIB),
    )


def profile_of(*units: Unit, optimizer_s: float = 1.0, input_s: float = 0.5) -> RankProfile:
    """A model that consists of these units; each gradient is ready when its unit's backward has ended."""
    ready_s, gradients = 0.0, []
    for part in reversed(units):
        ready_s += part.backward_s
        gradients.append(Gradient(size_bytes=part.parameter_bytes, ready_s=ready_s))
    return RankProfile(
        samples=8,
        input_s=input_s,
        forward_s=sum(part.forward_s for part in units),
        backward_s=sum(part.backward_s for part in units),
        optimizer_s=optimizer_s,
        gradients=tuple(gradients),
        units=units,
    )


seconds = st.floats(0.01, 4.0)
units = st.builds(
    unit,
    st.just("unit"),
    seconds,
    seconds,
    st.floats(0.1, 64),
    st.floats(0.0, 8),
)
profiles = st.lists(units, min_size=4, max_size=12).map(lambda parts: profile_of(*parts))


# ---- Inputs of predictions whose every part is known

LATENCY_S, RATE = 1e-4, 1e9


def ring_s(size: float, ranks: int) -> float:
    """An all-reduce over a ring."""
    return 2 * (ranks - 1) * LATENCY_S + 2 * (ranks - 1) / ranks * size / RATE


def made_times(*ranks: int) -> MeasuredTimes:
    """Curves of all-reduces on these numbers of ranks."""
    sizes = [1, *(1 << shift for shift in range(10, 28))]
    return MeasuredTimes(
        {
            ("all_reduce", count): Curve.through([(size, ring_s(size, count)) for size in sizes])
            for count in ranks
        }
    )


def made_inputs(
    curve_ranks: Iterable[int] = (2,), batches: Iterable[int] = (32,), **settings: Any
) -> JobInputs:
    """A DDP job of the first batch, 10 ms and 0.5 ms per sample on one rank."""
    sizes = tuple(batches)
    (trial,) = make_trials(world_size=2, batch_size=sizes[0], **settings)
    profiles = tuple(_measured(trial, samples) for samples in sizes)
    run = Run(path=Path("/runs/made"), environment={}, results=(), warnings=())
    return JobInputs(
        run=run, job=PredictedJob(trial, profiles, {2: trial.trial_id}), times=made_times(*curve_ranks)
    )


def _measured(trial: Trial, samples: int) -> MeasuredProfile:
    (alone,) = make_trials(world_size=1, batch_size=samples)
    profile = made_profile(samples, 0.010 + 0.0005 * samples)
    return MeasuredProfile(trial=alone, profile=profile, memory_bytes=100 << 20)
