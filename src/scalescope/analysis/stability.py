"""Stability: whether a rank's speed changed during a launch by more than its own noise explains.

Every rank is judged separately. The slowest of many ranks is an order statistic, which moves with the number
of ranks though none of them does.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

from scalescope.analysis.statistics import t_quantile

DRIFT = 0.02  # a smaller change is not worth a word, however sure
_TRIMMED = 0.2  # of a half's steps, at either end: stalls are outliers, and counted as such
_ALPHA = 0.01  # that any rank of a launch is called drifting by chance
_LEAST_STEPS = 4
_MOST_CORRELATION = 0.9
_STANDS_OUT = 4.0  # times the noise of the ratio of two matrix products
_LAUNCHES_FOR_NOISE = 3
_RANKS_FOR_NOISE = 4
_TO_DEVIATION = 1.4826  # a median absolute deviation, as a standard deviation of normal noise


def drifting_ranks(per_rank: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The ranks whose step times changed from the first half of the window to the second."""
    level = 1.0 - _ALPHA / 2.0 / max(1, len(per_rank))
    return tuple(rank for rank, times in enumerate(per_rank) if _drifts(times, level))


def _drifts(times: Sequence[float], level: float) -> bool:
    """By more than 2 %, and by more than the steps' own noise: Yuen's test (1974) of trimmed means.

    Noise is what is left of each half without its trend, else a steady trend would hide itself. Steps that
    resemble the step before them say less: the variance grows by (1 + r) ÷ (1 − r).
    """
    half = len(times) // 2
    if half * 2 < _LEAST_STEPS:
        return False  # too few steps to judge
    halves = times[:half], times[half:]
    first, second = (_trimmed_mean(part) for part in halves)
    if abs(second / first - 1.0) <= DRIFT:
        return False
    residuals = [_winsorised(_without_trend(part)) for part in halves]
    variance = math.fsum(_variance_of_trimmed_mean(part) for part in residuals)
    correlation = max(_correlation(part) for part in residuals)
    variance *= (1.0 + correlation) / (1.0 - correlation)
    if variance == 0.0:
        return True
    freedom = max(1.0, math.fsum(len(part) - 2 * _cut(part) - 1 for part in halves))
    return abs(second - first) > t_quantile(level, freedom) * math.sqrt(variance)


def _cut(values: Sequence[float]) -> int:
    return int(_TRIMMED * len(values))


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = _cut(values)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _without_trend(values: Sequence[float]) -> list[float]:
    """What is left of the values beside a robust line: the median of the slopes over half their length."""
    lag = len(values) // 2
    slopes = [(values[n + lag] - values[n]) / lag for n in range(len(values) - lag)] if lag else [0.0]
    slope = statistics.median(slopes) if len(values) > 2 * _LEAST_STEPS else 0.0
    flat = [value - slope * n for n, value in enumerate(values)]
    middle = statistics.median(flat)
    return [value - middle for value in flat]


def _winsorised(values: Sequence[float]) -> list[float]:
    """The values with the outer ones moved to the ends of the rest, in their order."""
    cut = _cut(values)
    ordered = sorted(values)
    low, high = ordered[cut], ordered[len(values) - 1 - cut]
    return [min(max(value, low), high) for value in values]


def _variance_of_trimmed_mean(winsorised: Sequence[float]) -> float:
    if len(winsorised) < 2:
        return 0.0
    count, kept = len(winsorised), len(winsorised) - 2 * _cut(winsorised)
    return statistics.variance(winsorised) * (count - 1) / (kept * max(1, kept - 1))


def _correlation(values: Sequence[float]) -> float:
    """Of steps that follow each other, between 0 and 0.9."""
    mean = statistics.fmean(values)
    total = math.fsum((value - mean) ** 2 for value in values)
    if total == 0.0:
        return 0.0
    products = math.fsum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    return min(max(products / total, 0.0), _MOST_CORRELATION)


Change = float | None  # of a rank's matrix product over a launch, as a logarithm; None is unknown


def changed_ranks(launches: Sequence[Sequence[Change]]) -> list[tuple[int, ...]]:
    """For every launch, the ranks whose bare matrix product changed speed from before to after.

    By more than 2 %, and by more than such products differ: as the same ranks' others do over launches, or
    where there are few launches, as the other ranks' do.
    """
    least = max(math.log1p(DRIFT), _STANDS_OUT * _noise(launches))
    return [
        tuple(rank for rank, change in enumerate(launch) if change is not None and abs(change) > least)
        for launch in launches
    ]


def _noise(launches: Sequence[Sequence[Change]]) -> float:
    """Robust standard deviation of a change; 0 where there are too few to tell."""
    by_rank: dict[int, list[float]] = {}
    for launch in launches:
        for rank, change in enumerate(launch):
            if change is not None:
                by_rank.setdefault(rank, []).append(change)
    deviations: list[float] = []
    for changes in by_rank.values():
        if len(changes) >= _LAUNCHES_FOR_NOISE:
            # Launches that follow each other: a change that all launches share is not noise.
            deviations += [abs(b - a) / math.sqrt(2.0) for a, b in itertools.pairwise(changes)]
    if not deviations and len(by_rank) >= _RANKS_FOR_NOISE:
        changes = [change for rank in by_rank.values() for change in rank]
        middle = statistics.median(changes)
        deviations = [abs(change - middle) for change in changes]
    return _TO_DEVIATION * statistics.median(deviations) if deviations else 0.0
