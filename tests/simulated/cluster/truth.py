"""What a simulated cluster loses and why: closed forms where there are any, else many simulated steps."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.experiment.explanations import at_per_rank_batch, has_loader, single_rank_baseline
from scalescope.experiment.trial import Trial
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.cluster.timeline import ClusterStep, LaunchNoise, Timeline, normal_steps

_STEPS_OF_A_LAUNCH = 25
_RANK_STEPS = 200_000  # to simulate, of all ranks; at least and at most so many steps
_LEAST_STEPS, _MOST_STEPS = 500, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTruth:
    """The true terms of a waterfall, in seconds of a step in the long run."""

    step_s: float  # of normal training, with samples that wait on the device
    typical_s: float  # of the median rank without communication; of two, of both
    smaller_batch_s: float | None  # None with a batch per rank
    wrapper_s: float
    contention_s: float
    stragglers_s: float
    random_skew_s: float
    communication_s: float
    input_s: float | None  # None without a loader

    def terms(self) -> dict[str, float]:
        """By the names that the waterfall has for them."""
        known = {
            "smaller batch": self.smaller_batch_s,
            "wrapper": self.wrapper_s,
            "contention": self.contention_s,
            "stragglers": self.stragglers_s,
            "random skew": self.random_skew_s,
            "communication": self.communication_s,
            "input": self.input_s,
        }
        return {name: time_s for name, time_s in known.items() if time_s is not None}


def truth_of(model: ClusterModel, trial: Trial) -> LossTruth:
    """The truth about normal training of a trial on several ranks."""
    ranks = trial.world_size
    usual_s = model.compute_s(trial) + model.stall_s
    late_s = sum(model.delays_s(ranks))
    typical_s = usual_s
    step_s, waited_s = _means(model, ranks, model.compute_s(trial))
    # A delay costs nothing where transfers that are queued anyway hide it.
    lost_to_peers_s = waited_s + usual_s + late_s / ranks - typical_s
    stragglers_s = min(late_s, lost_to_peers_s)
    skew_s = lost_to_peers_s - stragglers_s
    return LossTruth(
        step_s=step_s,
        typical_s=typical_s,
        smaller_batch_s=_smaller_batch(model, trial),
        wrapper_s=model.wrapper_s,
        contention_s=model.contention_s + typical_s - usual_s,
        stragglers_s=stragglers_s,
        random_skew_s=skew_s,
        communication_s=step_s - typical_s - stragglers_s - skew_s,
        input_s=model.input_s - model.input_alone_s if has_loader(trial) else None,
    )


def _smaller_batch(model: ClusterModel, trial: Trial) -> float | None:
    """What one rank's share of the batch takes alone, beyond its share of the time of all of it."""
    if trial.global_batch_size is None:
        return None
    alone, share = single_rank_baseline(trial), single_rank_baseline(at_per_rank_batch(trial))
    all_s, share_s = (
        model.compute_s(single) + model.stall_s + model.waiting_for_input_s(single)
        for single in (alone, share)
    )
    return share_s - all_s / trial.world_size


def _means(model: ClusterModel, ranks: int, compute_s: float) -> tuple[float, float]:
    """Mean step of normal training, and the mean over ranks of what they wait for peers in it.

    Launches come in pairs with opposite noise. Steps with and without a stall are averaged apart and weighted
    by how often they happen, which is known.
    """
    draw = random.Random(f"truth/{model.seed}")
    count = min(max(_RANK_STEPS // ranks, _LEAST_STEPS), _MOST_STEPS)
    calm: list[tuple[float, float]] = []
    stalled: list[tuple[float, float]] = []
    for _ in range(count // (2 * _STEPS_OF_A_LAUNCH)):
        noise = LaunchNoise.drawn(model, ranks, draw)
        for launch_noise in (noise, noise.mirrored):
            timeline = Timeline(model, launch_noise, draw, compute_s=compute_s)
            for step in normal_steps(timeline, _STEPS_OF_A_LAUNCH):
                (stalled if any(step.stall_s) else calm).append(_step_and_wait(step))
    if not calm or not stalled:
        return _averages(calm or stalled)
    quiet = (1.0 - model.burst_probability) ** ranks
    pairs = zip(_averages(calm), _averages(stalled), strict=True)
    step_s, waited_s = (quiet * mean + (1.0 - quiet) * other for mean, other in pairs)
    return step_s, waited_s


def _step_and_wait(step: ClusterStep) -> tuple[float, float]:
    ranks = len(step.step_s)
    return math.fsum(step.step_s) / ranks, math.fsum(step.waited_s()) / ranks


def _averages(rows: Iterable[tuple[float, float]]) -> tuple[float, float]:
    steps_s, waits_s = zip(*rows, strict=True)
    return math.fsum(steps_s) / len(steps_s), math.fsum(waits_s) / len(waits_s)
