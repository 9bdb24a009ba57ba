"""Culprit: which rank the others wait for, by their step times or by their times in a collective."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_USUALLY = 0.7  # of the iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The slowest rank, how much longer its step takes, and whether it is the slowest in every launch."""

    rank: int
    time_s: float
    persistent: bool


def find_culprit(rank_means_s: Sequence[Sequence[float]]) -> Straggler:
    """The rank that was the slowest in most launches, from every launch's mean step of each rank.

    The ranks must not wait for each other, or all of them are as slow as the slowest.
    """
    slowest = Counter(max(range(len(means)), key=means.__getitem__) for means in rank_means_s)
    rank, times = slowest.most_common(1)[0]
    behind = statistics.fmean(
        means[rank] - statistics.median([*means[:rank], *means[rank + 1 :]]) for means in rank_means_s
    )
    return Straggler(rank=rank, time_s=behind, persistent=times == len(rank_means_s))


def last_to_arrive(times_s: Sequence[Sequence[float]]) -> int | None:
    """The rank that arrives last at most iterations of a collective, hence waits least; None without one."""
    if len(times_s[0]) < 2:  # imported: the times of each rank are not known
        return None
    last = [times.index(min(times)) for times in times_s]
    rank = statistics.mode(last)
    return rank if last.count(rank) > _USUALLY * len(last) else None
