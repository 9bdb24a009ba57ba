"""Intervals of time: what is covered, what is covered twice, and what is not."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, sorted and without overlaps."""
    disjoint: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], end))
        else:
            disjoint.append((start, end))
    return disjoint


def total(intervals: Iterable[Interval]) -> float:
    """How long all of them are together; overlaps count once."""
    return sum(end - start for start, end in merged(intervals))


def common(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """What both cover."""
    ours, theirs = merged(left), merged(right)
    intervals: list[Interval] = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        start, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if start < end:
            intervals.append((start, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return intervals


def without(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """What the left cover and the right do not."""
    taken = merged(right)
    intervals: list[Interval] = []
    first = 0
    for start, end in merged(left):
        while first < len(taken) and taken[first][1] <= start:
            first += 1
        at = first
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > start:
                intervals.append((start, taken[at][0]))
            start = max(start, taken[at][1])
            at += 1
        if start < end:
            intervals.append((start, end))
    return intervals


def within(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """What of them lies inside a window."""
    low, high = window
    cut = ((max(start, low), min(end, high)) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]


def hull(intervals: Sequence[Interval]) -> Interval | None:
    """From the first start to the last end."""
    if not intervals:
        return None
    return min(start for start, _ in intervals), max(end for _, end in intervals)
