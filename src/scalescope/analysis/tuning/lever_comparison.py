"""Lever comparison: every candidate of a tuning against the baseline, its speed and its loss."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.verdicts import LEAST_EFFECT, Judgement, Remedy, Verdict, judge_all
from scalescope.experiment.trial import Trial

_LOSS_TOLERANCE = 0.02
_STANDS_OUT = 3.0  # standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverComparison:
    """A configuration against the baseline."""

    candidate: Configuration
    speedup: Estimate
    p_value: float | None
    smallest_detectable: float | None  # see `smallest_effect`
    verdict: Verdict
    loss_change: float | None
    loss_differs: bool = False
    remedy: Remedy | None = None  # of what is inconclusive


def compare_all(
    baseline: Configuration, candidates: Sequence[Configuration], threshold: float
) -> tuple[LeverComparison, ...]:
    """All verdicts of a run; the more comparisons, the more sure each claim must be."""
    pairs = [(candidate.log_rates, baseline.log_rates) for candidate in candidates]
    return tuple(
        _comparison(baseline, candidate, judgement)
        for candidate, judgement in zip(candidates, judge_all(pairs, threshold), strict=True)
    )


def _comparison(
    baseline: Configuration, configuration: Configuration, judgement: Judgement
) -> LeverComparison:
    loss_change, loss_differs = loss_of(baseline, configuration)
    return LeverComparison(
        candidate=configuration,
        speedup=judgement.speedup,
        p_value=judgement.p_value,
        smallest_detectable=judgement.smallest_detectable,
        verdict=judgement.verdict,
        remedy=judgement.remedy,
        loss_change=loss_change,
        loss_differs=loss_differs,
    )


def fastest(measured: Sequence[Configuration], baseline: Trial) -> tuple[Trial, float] | None:
    """What is fastest so far, and how many times the baseline's speed; None before there is anything."""
    rates = {configuration.trial.trial_id: configuration.samples_per_s.value for configuration in measured}
    if baseline.trial_id not in rates or len(rates) < 2:
        return None
    best = max(measured, key=lambda configuration: configuration.samples_per_s.value).trial
    gain = rates[best.trial_id] / rates[baseline.trial_id]
    return (best, gain) if gain > 1.0 + LEAST_EFFECT else None


def loss_of(baseline: Configuration, configuration: Configuration) -> tuple[float | None, bool]:
    """Relative change of the loss over the later half of the steps both made, and whether it is a real one.

    The same steps see the same samples, so they are compared one by one; in the same time a faster
    configuration makes more of them. Where they differ to and fro, as by
    other random numbers for dropout, only a difference that stands out from that is one.
    """
    both = list(zip(_losses(baseline), _losses(configuration), strict=False))
    later = both[len(both) // 2 :]
    return loss_change([left for left, _ in later], [right for _, right in later])


def loss_change(before: Sequence[float], after: Sequence[float]) -> tuple[float | None, bool]:
    """Relative change of the loss over the steps both made, and whether it is a real one."""
    steps = min(len(before), len(after))
    before, after = before[:steps], after[:steps]
    if not before or math.fsum(before) == 0.0:
        return None, False
    differences = [right - left for left, right in zip(before, after, strict=True)]
    change = statistics.fmean(differences) / abs(statistics.fmean(before))
    error = 0.0
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences)) / abs(statistics.fmean(before))
    return change, abs(change) > max(_LOSS_TOLERANCE, _STANDS_OUT * error)


def _losses(configuration: Configuration) -> list[float]:
    """The losses of the window, step by step, as a mean over launches."""
    per_launch = [launch.losses for launch in configuration.launches if launch.losses]
    return [statistics.fmean(step) for step in zip(*per_launch, strict=False)]
