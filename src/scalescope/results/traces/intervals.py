"""Intervals of time: what is covered, what is covered twice, and what is not."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

Interval = tuple[float, float]


class Timed(Protocol):
    """Something that begins and ends."""

    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


_Timed = TypeVar("_Timed", bound=Timed)


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


class Cover:
    """Time that is covered, for many questions about how much of an interval is."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._parts = merged(intervals)
        self._begins = [start for start, _ in self._parts]
        self._before = [0.0, *itertools.accumulate(end - start for start, end in self._parts)]

    def seconds(self, start: float, end: float) -> float:
        """How much of an interval is covered."""
        return self._until(end) - self._until(start) if end > start else 0.0

    def holds(self, moment: float) -> bool:
        """Whether a moment is covered."""
        index = bisect.bisect_right(self._begins, moment) - 1
        return index >= 0 and moment < self._parts[index][1]

    def inside(self, start: float, end: float) -> list[Interval]:
        """What is covered of an interval."""
        first = max(0, bisect.bisect_right(self._begins, start) - 1)
        return within(self._parts[first : bisect.bisect_left(self._begins, end)], (start, end))

    def _until(self, moment: float) -> float:
        index = bisect.bisect_right(self._begins, moment) - 1
        if index < 0:
            return 0.0
        start, end = self._parts[index]
        return self._before[index] + min(moment, end) - start


class Overlapping(Generic[_Timed]):
    """Events in the order of their starts, for many questions about which of them a window has."""

    def __init__(self, events: Iterable[_Timed]) -> None:
        self._events = sorted(events, key=lambda event: event.start_s)
        self._begins = [event.start_s for event in self._events]
        self._latest_ends = list(itertools.accumulate((event.end_s for event in self._events), max))

    def within(self, window: Interval) -> list[_Timed]:
        """Those with some of their time in a window."""
        first = bisect.bisect_right(self._latest_ends, window[0])
        last = bisect.bisect_left(self._begins, window[1])
        return [event for event in self._events[first:last] if event.end_s > window[0]]

    def begun_within(self, window: Interval) -> list[_Timed]:
        """Those that begin in a window."""
        return self._events[
            bisect.bisect_left(self._begins, window[0]) : bisect.bisect_left(self._begins, window[1])
        ]
