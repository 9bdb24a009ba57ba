"""Culprit: which rank the others wait for, by their step times or by their times in a collective."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.statistics import mean_with_interval

_USUALLY = 0.7  # of the iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that may be slower than the others: by how much, and whether that can be relied on."""

    rank: int
    time_s: float  # per step, behind the median of the other ranks
    persistent: bool  # the slowest in both halves of the launches, and for sure


def typical_steps_s(rank_means_s: Sequence[Sequence[float]]) -> list[float]:
    """The step of a typical rank in each launch: the median, which one late rank does not move.

    Of two ranks it is that of the faster one over all launches; one launch cannot tell which that is, so
    their mean stands for it.
    """
    if len(rank_means_s[0]) != 2 or len(rank_means_s) == 1:
        return [statistics.median(means) for means in rank_means_s]
    late = _slowest(rank_means_s)
    return [means[1 - late] for means in rank_means_s]


def delays_s(rank_means_s: Sequence[Sequence[float]]) -> list[float] | None:
    """By how much the slowest rank is behind a typical one, in each launch; None for a single launch.

    The largest of many noisy values is large by chance. So the rank is chosen in one half of the launches and
    its delay is read in the other half, and the other way round.
    """
    chosen = _slowest_by_halves(rank_means_s)
    if chosen is None:
        return None
    typical_s = typical_steps_s(rank_means_s)
    return [means[chosen[1 - number % 2]] - typical_s[number] for number, means in enumerate(rank_means_s)]


def find_culprit(rank_means_s: Sequence[Sequence[float]]) -> Straggler | None:
    """The rank that the others wait for, from every launch's mean step of each rank; None for one launch.

    The ranks must not wait for each other, or all of them are as slow as the slowest.
    """
    chosen, delays = _slowest_by_halves(rank_means_s), delays_s(rank_means_s)
    if chosen is None or delays is None:
        return None
    behind_s = statistics.fmean(
        means[chosen[1 - number % 2]] - statistics.median(_without(means, chosen[1 - number % 2]))
        for number, means in enumerate(rank_means_s)
    )
    low = mean_with_interval(delays).low
    certain = chosen[0] == chosen[1] and low is not None and low > 0.0
    slowest = chosen[0] if chosen[0] == chosen[1] else _slowest(rank_means_s)
    return Straggler(rank=slowest, time_s=behind_s, persistent=certain)


def _slowest_by_halves(rank_means_s: Sequence[Sequence[float]]) -> tuple[int, int] | None:
    """The slowest rank among every second launch, and among the others; None where one half is empty.

    Of two ranks, the choice is only the sign of their difference: all launches choose. By halves, launches of
    two equal ranks would all get the same sign, and their mean would be too far from zero for its interval.
    """
    halves = rank_means_s[::2], rank_means_s[1::2]
    if all(halves) and len(rank_means_s[0]) == 2:
        halves = rank_means_s, rank_means_s
    return (_slowest(halves[0]), _slowest(halves[1])) if all(halves) else None


def _slowest(rank_means_s: Sequence[Sequence[float]]) -> int:
    totals = [sum(means) for means in zip(*rank_means_s, strict=True)]
    return max(range(len(totals)), key=totals.__getitem__)


def _without(values: Sequence[float], index: int) -> list[float]:
    return [*values[:index], *values[index + 1 :]]


def last_to_arrive(times_s: Sequence[Sequence[float]]) -> int | None:
    """The rank that arrives last at most iterations of a collective, hence waits least; None without one."""
    if len(times_s[0]) < 2:  # imported: the times of each rank are not known
        return None
    last = [times.index(min(times)) for times in times_s]
    rank = statistics.mode(last)
    return rank if last.count(rank) > _USUALLY * len(last) else None
