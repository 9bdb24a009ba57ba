"""Intervals: what is common and what is left make up the whole, and nothing is counted twice."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.results.traces.intervals import (
    Cover,
    Interval,
    Overlapping,
    common,
    hull,
    merged,
    total,
    within,
    without,
)

MOMENTS = st.integers(0, 60).map(float)  # whole numbers: sums are exact
INTERVALS = st.lists(st.tuples(MOMENTS, MOMENTS), max_size=12)


class Timed(NamedTuple):
    """An event that does not end before it begins."""

    start_s: float
    end_s: float


TIMED = st.lists(st.builds(lambda start, length: Timed(start, start + length), MOMENTS, MOMENTS), max_size=12)


def covered(intervals: list[Interval]) -> set[int]:
    """The unit stretches that lie inside any of them."""
    return {moment for start, end in intervals for moment in range(int(start), int(end))}


@settings(max_examples=30)
@given(INTERVALS)
def test_merging_keeps_the_time_and_leaves_gaps_between(intervals: list[Interval]) -> None:
    disjoint = merged(intervals)
    assert covered(disjoint) == covered(intervals)
    assert all(start < end for start, end in disjoint)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(disjoint))
    assert merged(disjoint) == disjoint


@settings(max_examples=30)
@given(INTERVALS, INTERVALS)
def test_what_is_common_and_what_is_left_make_up_the_whole(
    left: list[Interval], right: list[Interval]
) -> None:
    assert total(common(left, right)) + total(without(left, right)) == total(left)
    assert total(left) + total(without(right, left)) == total([*left, *right])


@settings(max_examples=30)
@given(INTERVALS, INTERVALS)
def test_common_and_without_are_those_of_sets(left: list[Interval], right: list[Interval]) -> None:
    assert covered(common(left, right)) == covered(left) & covered(right)
    assert covered(without(left, right)) == covered(left) - covered(right)
    assert common(left, right) == common(right, left)
    assert common(without(left, right), right) == []


@settings(max_examples=30)
@given(INTERVALS, st.tuples(MOMENTS, MOMENTS))
def test_a_window_cuts_as_an_interval_does(intervals: list[Interval], window: Interval) -> None:
    assert merged(within(intervals, window)) == common(intervals, [window])


@settings(max_examples=30)
@given(INTERVALS.filter(bool))
def test_a_hull_holds_everything_and_touches_both_ends(intervals: list[Interval]) -> None:
    outer = hull(intervals)
    assert outer is not None
    assert outer[0] in {start for start, _ in intervals} and outer[1] in {end for _, end in intervals}
    assert covered(intervals) <= covered([outer])


@pytest.mark.parametrize("function", [common, without])
def test_nothing_and_nothing_is_nothing(function: Callable[..., list[Interval]]) -> None:
    assert function([], []) == []
    assert function([], [(1.0, 2.0)]) == []
    assert (merged([]), total([]), within([], (0.0, 1.0)), hull([])) == ([], 0, [], None)


def test_intervals_that_touch_are_one() -> None:
    assert merged([(2.0, 3.0), (1.0, 2.0)]) == [(1.0, 3.0)]
    assert common([(1.0, 2.0)], [(2.0, 3.0)]) == []


def test_an_interval_that_ends_before_it_begins_counts_for_nothing() -> None:
    assert merged([(3.0, 1.0), (2.0, 2.0)]) == []
    assert total([(3.0, 1.0), (0.0, 4.0)]) == 4.0


def test_several_holes_are_cut_into_one_interval() -> None:
    holes = [(0.0, 1.0), (2.0, 3.0), (5.0, 9.0)]
    assert without([(0.0, 6.0), (8.0, 10.0)], holes) == [(1.0, 2.0), (3.0, 5.0), (9.0, 10.0)]


@settings(max_examples=50)
@given(INTERVALS, st.tuples(MOMENTS, MOMENTS))
def test_a_cover_answers_as_its_intervals_do(intervals: list[Interval], asked: Interval) -> None:
    cover = Cover(intervals)
    assert cover.seconds(*asked) == total(common(intervals, [asked]))
    assert cover.inside(*asked) == common(intervals, [asked])
    assert cover.holds(asked[0]) == (int(asked[0]) in covered(intervals))


@settings(max_examples=50)
@given(TIMED, st.tuples(MOMENTS, MOMENTS).filter(lambda window: window[0] < window[1]))
def test_events_of_a_window_are_those_that_reach_into_it(events: list[Timed], window: Interval) -> None:
    asked = Overlapping(events)
    low, high = window
    assert sorted(asked.within(window)) == sorted(e for e in events if e.start_s < high and e.end_s > low)
    assert sorted(asked.begun_within(window)) == sorted(e for e in events if low <= e.start_s < high)


def test_events_of_a_window_come_in_the_order_of_their_starts() -> None:
    events = [Timed(3.0, 4.0), Timed(1.0, 9.0), Timed(2.0, 2.5)]
    assert Overlapping(events).within((0.0, 10.0)) == sorted(events)
