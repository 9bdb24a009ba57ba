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

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
_LEAST_EFFECT = 0.01  # smaller differences are not claimed, however sure
_ALPHA = 0.05
_LOSS_TOLERANCE = 0.02
_LAST_LOSSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A configuration against the baseline."""

    candidate: Configuration
    speedup: Estimate
    p_value: float | None
    smallest_seen: float | None  # the effect that would have been found in four of five such runs
    verdict: Verdict
    loss_change: float | None

    @property
    def loss_differs(self) -> bool:
        return self.loss_change is not None and abs(self.loss_change) > _LOSS_TOLERANCE


def compare_all(
    baseline: Configuration, candidates: Sequence[Configuration], threshold: float
) -> tuple[Comparison, ...]:
    """All verdicts of a run; the more comparisons, the more sure each claim must be."""
    tests = [p_value(one.log_rates, baseline.log_rates) for one in candidates]
    return tuple(
        _comparison(baseline, one, p, claimed, threshold)
        for one, p, claimed in zip(candidates, tests, holm(tests), strict=True)
    )


def _comparison(
    baseline: Configuration, one: Configuration, p: float | None, claimed: bool, threshold: float
) -> Comparison:
    speedup = ratio_of_logs(one.log_rates, baseline.log_rates)
    seen = smallest_effect(one.log_rates, baseline.log_rates)
    return Comparison(
        candidate=one,
        speedup=speedup,
        p_value=p,
        smallest_seen=seen,
        verdict=_verdict(speedup.value, claimed, seen, threshold),
        loss_change=_loss_change(baseline, one),
    )


def _verdict(speedup: float, claimed: bool, seen: float | None, threshold: float) -> Verdict:
    if claimed and abs(speedup - 1.0) > _LEAST_EFFECT:
        return "faster" if speedup > 1.0 else "slower"
    # What looks larger than the threshold but survives no correction is no proof of equality either.
    small = abs(speedup - 1.0) <= threshold
    return "no difference" if small and seen is not None and seen <= threshold else "inconclusive"


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
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    holds = [False] * len(p_values)
    for rank, (p, place) in enumerate(order):
        if p > alpha / (len(order) - rank):
            break
        holds[place] = True
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


def _loss_change(baseline: Configuration, one: Configuration) -> float | None:
    """Relative change of the loss at the end of equally many steps; None where either is unknown."""
    before, after = _last_loss(baseline), _last_loss(one)
    if before is None or after is None or before == 0.0:
        return None
    return after / before - 1.0


def _last_loss(one: Configuration) -> float | None:
    losses = [value for launch in one.launches for value in launch.losses[-_LAST_LOSSES:]]
    return statistics.fmean(losses) if losses else None
