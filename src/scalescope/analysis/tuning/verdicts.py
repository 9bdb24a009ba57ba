"""Tuning: whether one configuration is faster than another, and how small a difference could be seen.

The unit is the launch; y = ln(samples ÷ window). Claims survive Holm's correction over all comparisons of a
run, and "no difference" is said only where a difference worth having would have been seen.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate, ratio_of_logs, t_probability, t_quantile
from scalescope.experiment.trial import Trial

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
LEAST_EFFECT = 0.01  # smaller differences are not claimed, however sure
_ALPHA = 0.05
_LOSS_TOLERANCE = 0.02
_STANDS_OUT = 3.0  # standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverComparison:
    """A configuration against the baseline."""

    candidate: Configuration
    speedup: Estimate
    p_value: float | None
    smallest_detectable: float | None  # the effect that would have been found in four of five such runs
    verdict: Verdict
    loss_change: float | None
    loss_differs: bool = False


def compare_all(
    baseline: Configuration, candidates: Sequence[Configuration], threshold: float
) -> tuple[LeverComparison, ...]:
    """All verdicts of a run; the more comparisons, the more sure each claim must be."""
    tests = [p_value(candidate.log_rates, baseline.log_rates) for candidate in candidates]
    return tuple(
        _comparison(baseline, candidate, p, claimed, threshold)
        for candidate, p, claimed in zip(candidates, tests, holm(tests), strict=True)
    )


def _comparison(
    baseline: Configuration, configuration: Configuration, p: float | None, claimed: bool, threshold: float
) -> LeverComparison:
    speedup = ratio_of_logs(configuration.log_rates, baseline.log_rates)
    detectable = smallest_effect(configuration.log_rates, baseline.log_rates)
    loss_change, loss_differs = loss_of(baseline, configuration)
    return LeverComparison(
        candidate=configuration,
        speedup=speedup,
        p_value=p,
        smallest_detectable=detectable,
        verdict=verdict_of(speedup.value, claimed, detectable, threshold),
        loss_change=loss_change,
        loss_differs=loss_differs,
    )


def verdict_of(speedup: float, claimed: bool, detectable: float | None, threshold: float) -> Verdict:
    """What may be said of a speedup, given whether its test holds and how small an effect it could see."""
    if claimed and abs(speedup - 1.0) > LEAST_EFFECT:
        return "faster" if speedup > 1.0 else "slower"
    # What looks larger than the threshold but survives no correction is no proof of equality either.
    small = abs(speedup - 1.0) <= threshold
    return "no difference" if small and detectable is not None and detectable <= threshold else "inconclusive"


def p_value(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Welch's two-sided test of equal means; None where there are too few launches."""
    if len(left) < 2 or len(right) < 2:
        return None
    variances = [statistics.variance(side) / len(side) for side in (left, right)]
    total = sum(variances)
    difference = abs(statistics.fmean(left) - statistics.fmean(right))
    if total == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    freedom = total**2 / sum(v**2 / (len(s) - 1) for v, s in zip(variances, (left, right), strict=True))
    return 2.0 * (1.0 - t_probability(difference / math.sqrt(total), freedom))


def holm(p_values: Sequence[float | None], alpha: float = _ALPHA) -> list[bool]:
    """Which claims hold together (Holm 1979): the smallest p against α/m, the next against α/(m−1) …"""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    holds = [False] * len(p_values)
    for rank, (p, index) in enumerate(order):
        if p > alpha / (len(order) - rank):
            break
        holds[index] = True
    return holds


def smallest_effect(left: Sequence[float], right: Sequence[float]) -> float | None:
    """(t.975 + t.8)·s·√(2/k): the relative difference that four of five such comparisons would find."""
    if len(left) < 2 or len(right) < 2:
        return None
    freedom = len(left) + len(right) - 2
    spread = math.sqrt((statistics.variance(left) + statistics.variance(right)) / 2.0)
    count = 2.0 / (1.0 / len(left) + 1.0 / len(right))
    half = (t_quantile(0.975, freedom) + t_quantile(0.8, freedom)) * spread * math.sqrt(2.0 / count)
    return math.expm1(half)


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
    before, after = [left for left, _ in later], [right for _, right in later]
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
