"""Losses: whether two configurations train alike, step by step."""

import math
import statistics
from collections.abc import Sequence

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import t_quantile

_TOLERANCE = 0.02
_STANDS_OUT = 0.99865  # the probability of three standard deviations


def loss_of(baseline: Configuration, configuration: Configuration) -> tuple[float | None, bool]:
    """Relative change of the loss over the later half of the steps both made, and whether it is a real one.

    The same steps see the same samples, so they are compared one by one, from the first step of a launch on;
    in the same time a faster configuration makes more of them. Where they differ to and fro, as by other
    random numbers for dropout, only a difference that stands out from that is one.
    """
    both = list(zip(*_aligned(baseline, configuration), strict=False))
    later = both[len(both) // 2 :]
    return loss_change([left for left, _ in later], [right for _, right in later])


def loss_change(before: Sequence[float], after: Sequence[float]) -> tuple[float | None, bool]:
    """Relative change of the loss over the steps both made, and whether it is a real one."""
    steps = min(len(before), len(after))
    before, after = before[:steps], after[:steps]
    if not before or math.fsum(before) == 0.0:
        return None, False
    differences = [right - left for left, right in zip(before, after, strict=True)]
    mean = abs(statistics.fmean(before))
    change = statistics.fmean(differences) / mean
    if len(differences) == 1:
        return change, abs(change) > _TOLERANCE
    error = statistics.stdev(differences) / math.sqrt(len(differences)) / mean
    return change, abs(change) > max(_TOLERANCE, t_quantile(_STANDS_OUT, len(differences) - 1) * error)


def _aligned(left: Configuration, right: Configuration) -> tuple[list[float], list[float]]:
    """The losses of both from the same step on; empty where nobody knows which steps they are.

    Launches that warm up for a time make different numbers of steps before those they measure.
    """
    launches = [launch for launch in (*left.launches, *right.launches) if launch.losses]
    if all(launch.warmup_losses is not None for launch in launches):
        return _from_the_first(left), _from_the_first(right)
    if len({launch.warmup_steps for launch in launches}) > 1:
        return [], []
    return _measured(left), _measured(right)


def _from_the_first(configuration: Configuration) -> list[float]:
    """The losses of all steps, as a mean over launches."""
    per_launch = [
        (*(launch.warmup_losses or ()), *launch.losses) for launch in configuration.launches if launch.losses
    ]
    return [statistics.fmean(step) for step in zip(*per_launch, strict=False)]


def _measured(configuration: Configuration) -> list[float]:
    """The losses of the window, step by step, as a mean over launches."""
    per_launch = [launch.losses for launch in configuration.launches if launch.losses]
    return [statistics.fmean(step) for step in zip(*per_launch, strict=False)]
