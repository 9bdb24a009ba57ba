"""Inputs of predictions whose every part is known."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.prediction.forecasts.jobs import PredictedJob
from scalescope.analysis.prediction.inputs import JobInputs
from scalescope.analysis.prediction.measured_times import MeasuredTimes
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run
from tests.made_profiles import made_profile
from tests.unit.report.known_runs import make_trials

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
