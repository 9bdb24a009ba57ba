"""Two modes: whether times fall into two groups far apart; a median then jumps from one to the other."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_TIMES = 20
_LEAST_SHARE = 0.15  # of the times in each group: fewer are outliers
_LEAST_RATIO = 2.0  # of the medians of the two
# Of the variance of logs that lies between the groups. The best split of a normal distribution explains
# 64 % (2 over pi), that of a uniform one 75 %.
_LEAST_EXPLAINED = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModes:
    """The typical time of each group, and how many of the times belong to the slower."""

    fast_s: float
    slow_s: float
    slow_share: float


def two_modes(times_s: Sequence[float]) -> TwoModes | None:
    """The best split of the sorted logs into two groups (Otsu 1979), where it separates them clearly."""
    ordered = sorted(times_s)
    count = len(ordered)
    if count < _LEAST_TIMES or ordered[0] <= 0.0:
        return None
    logs = [math.log(time_s) for time_s in ordered]
    total, mean = statistics.pvariance(logs), statistics.fmean(logs)
    if total == 0.0:
        return None
    best, split, below = 0.0, 0, 0.0
    for size, log in enumerate(logs[:-1], start=1):
        below += log - mean
        between = below**2 / (size * (count - size))  # weight × weight × distance², of the two means
        if min(size, count - size) >= _LEAST_SHARE * count and between > best:
            best, split = between, size
    if best < _LEAST_EXPLAINED * total or not split:
        return None
    fast, slow = statistics.median(ordered[:split]), statistics.median(ordered[split:])
    if slow < _LEAST_RATIO * fast:
        return None
    return TwoModes(fast_s=fast, slow_s=slow, slow_share=(count - split) / count)
