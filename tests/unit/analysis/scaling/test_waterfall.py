"""The bar that is drawn of a waterfall adds up to N, and the parts of one rank and of more to the step."""

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
from scalescope.analysis.scaling.whole_step import whole_step
from scalescope.analysis.training.step_waterfall import BACKWARD, COPIES, FORWARD
from scalescope.experiment.explanations import single_rank_baseline
from tests.builders.results import make_term, make_waterfall, waterfalls
from tests.builders.steps import make_step


@given(waterfalls())
@settings(max_examples=60)
def test_the_bar_adds_up_to_all_ranks_and_every_term_is_in_one_segment(waterfall: Waterfall) -> None:
    segments = sorted(waterfall.segments, key=lambda segment: (segment.begin, segment.end))
    lengths = [math.copysign(segment.end - segment.begin, segment.value) for segment in segments]
    assert math.fsum(lengths) == pytest.approx(waterfall.ranks, abs=1e-9)
    left, right = min(segment.begin for segment in segments), max(segment.end for segment in segments)
    assert right + min(left, 0.0) == pytest.approx(waterfall.ranks, abs=1e-9)
    for segment, following in itertools.pairwise(segments):
        assert segment.end == pytest.approx(following.begin, abs=1e-9)
    for segment in segments:
        assert segment.end - segment.begin == pytest.approx(abs(segment.value), abs=1e-9)
        assert segment.end <= 0.0 if segment.value < 0.0 else segment.begin >= 0.0
        terms = [term for name in segment.terms if (term := waterfall.term(name)) is not None]
        assert all(term.significance == segment.significance for term in terms)
        if segment.significance not in (None, "not_measured"):
            assert segment.value == pytest.approx(math.fsum(t.lost.value for t in terms if t.lost))
    drawn = [name for segment in segments for name in segment.terms]
    assert sorted(drawn) == sorted(term.name for term in waterfall.terms)
    assert len({segment.name for segment in segments}) == len(segments)


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
    terms = (make_term(CONTENTION, -0.2, None, 2), make_term(COMMUNICATION, 0.7, None, 2))
    segments = make_waterfall(2, 1.5, terms).segments
    assert [segment.name for segment in segments] == [DELIVERED, CONTENTION, COMMUNICATION]
    assert {segment.significance for segment in segments} == {None, "no_interval"}


PARTS_MS = {FORWARD: 2.0, BACKWARD: 5.0, COPIES: 0.0}


@given(waterfalls())
@settings(max_examples=30)
def test_all_parts_add_up_to_the_measured_step(waterfall: Waterfall) -> None:
    one_rank = make_step(single_rank_baseline(waterfall.trial), PARTS_MS, ideal_ms=1.0)
    whole = whole_step(waterfall, [one_rank])
    assert whole is not None
    assert math.fsum(part.time_s.value for part in whole.parts) == pytest.approx(waterfall.step_s)
    before = math.fsum(part.time_s.value for part in whole.parts_of("one_rank"))
    assert before == pytest.approx(whole.one_rank_s)
    assert whole.lost_before_s is not None and whole.ideal_s is not None
    assert whole.ideal_s + whole.lost_before_s + whole.lost_by_ranks_s == pytest.approx(waterfall.step_s)
    assert whole.ideal_s / whole.one_rank_s == pytest.approx(1 / 7)
    assert len({part.label for part in whole.parts}) == len(whole.parts)
    # Without the parts of its own one rank there is no whole.
    assert whole_step(waterfall, []) is None
    assert whole_step(waterfall, [make_step(waterfall.trial, PARTS_MS)]) is None
