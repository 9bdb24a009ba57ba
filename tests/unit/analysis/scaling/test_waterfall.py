"""The bar that is drawn of a waterfall: it adds up to N, and nothing is missing from it."""

import itertools
import math

import pytest
from hypothesis import given, settings

from scalescope.analysis.scaling.waterfall import (
    COMMUNICATION,
    CONTENTION,
    DELIVERED,
    INPUT,
    NOT_SEPARATED,
    NOT_SIGNIFICANT,
    STRAGGLERS,
    WRAPPER,
    Waterfall,
)
from tests.builders.results import make_term, make_waterfall, waterfalls


@given(waterfalls())
@settings(deadline=None)
def test_the_bar_has_the_length_of_all_ranks(waterfall: Waterfall) -> None:
    segments = waterfall.segments
    lengths = [math.copysign(segment.end - segment.begin, segment.value) for segment in segments]
    assert math.fsum(lengths) == pytest.approx(waterfall.ranks, abs=1e-9)
    left, right = min(segment.begin for segment in segments), max(segment.end for segment in segments)
    assert right + min(left, 0.0) == pytest.approx(waterfall.ranks, abs=1e-9)


@given(waterfalls())
@settings(deadline=None)
def test_segments_lie_side_by_side_and_negative_ones_left_of_zero(waterfall: Waterfall) -> None:
    segments = sorted(waterfall.segments, key=lambda segment: (segment.begin, segment.end))
    for segment, following in itertools.pairwise(segments):
        assert segment.end == pytest.approx(following.begin, abs=1e-9)
    for segment in segments:
        assert segment.end - segment.begin == pytest.approx(abs(segment.value), abs=1e-9)
        assert segment.end <= 0.0 if segment.value < 0.0 else segment.begin >= 0.0


@given(waterfalls())
@settings(deadline=None)
def test_every_term_is_in_one_segment_and_those_with_zero_in_their_interval_are_together(
    waterfall: Waterfall,
) -> None:
    drawn = [name for segment in waterfall.segments for name in segment.terms]
    assert sorted(drawn) == sorted(term.name for term in waterfall.terms)
    for segment in waterfall.segments:
        terms = [term for name in segment.terms if (term := waterfall.term(name)) is not None]
        assert all(term.significance == segment.significance for term in terms)
        if segment.significance not in (None, "not_measured"):
            assert segment.value == pytest.approx(math.fsum(t.lost.value for t in terms if t.lost))
    names = [segment.name for segment in waterfall.segments]
    assert len(names) == len(set(names))


def test_the_bar_of_every_kind_of_term() -> None:
    terms = (
        make_term(WRAPPER, 0.1, 0.2, 4),
        make_term(CONTENTION, -0.5, 0.1, 4),
        make_term(STRAGGLERS, -0.3, 0.4, 4),
        make_term(COMMUNICATION, 1.2, 0.1, 4),
        make_term(INPUT, None, None, 4),
    )
    segments = make_waterfall(4, 3.0, terms).segments
    assert [(segment.name, segment.terms) for segment in segments] == [
        (DELIVERED, ()),
        (CONTENTION, (CONTENTION,)),
        (COMMUNICATION, (COMMUNICATION,)),
        (NOT_SIGNIFICANT, (WRAPPER, STRAGGLERS)),
        (NOT_SEPARATED, (INPUT,)),
    ]
    ends = [end for segment in segments for end in (segment.begin, segment.end)]
    assert ends == pytest.approx([0.0, 3.0, -0.5, 0.0, 3.0, 4.2, -0.7, -0.5, 4.2, 4.7])


def test_a_large_term_that_may_be_zero_is_not_the_largest_loss() -> None:
    doubtful, sure = make_term(COMMUNICATION, 0.9, 1.0, 2), make_term(WRAPPER, 0.1, 0.05, 2)
    largest = make_waterfall(2, 1.0, (doubtful, sure)).largest
    assert largest is not None and largest.name == WRAPPER


def test_a_single_launch_leaves_terms_as_they_are() -> None:
    terms = (make_term(CONTENTION, -0.2, None, 2), make_term(COMMUNICATION, 0.7, None, 2))
    segments = make_waterfall(2, 1.5, terms).segments
    assert [segment.name for segment in segments] == [DELIVERED, CONTENTION, COMMUNICATION]
    assert {segment.significance for segment in segments} == {None, "no_interval"}
