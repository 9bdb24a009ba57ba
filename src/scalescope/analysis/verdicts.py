"""Verdicts: whether one configuration is faster than another, and how small a difference is detectable.

The unit is the launch; y = ln(samples ÷ window). Claims survive Holm's correction over all comparisons of a
run. The verdict is "no difference" only where a difference as large as the threshold would be detected.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from scalescope.analysis.statistics import t_probability, t_quantile

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_DIFFERENCE: Final = "no difference"
INCONCLUSIVE: Final = "inconclusive"
LEAST_EFFECT = 0.01  # smaller differences are not claimed, however sure
_ALPHA = 0.05


def verdict_of(speedup: float, claimed: bool, detectable: float | None, threshold: float) -> Verdict:
    """The verdict on a speedup, given whether its test holds and the smallest effect the test can detect."""
    if claimed and abs(speedup - 1.0) > LEAST_EFFECT:
        return FASTER if speedup > 1.0 else SLOWER
    # What looks larger than the threshold but survives no correction is no proof of equality either.
    small = abs(speedup - 1.0) <= threshold
    return NO_DIFFERENCE if small and detectable is not None and detectable <= threshold else INCONCLUSIVE


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
