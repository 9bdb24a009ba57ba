"""The line of memory over the batch, and the search for the largest batch that fits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.memory.fit import MOST_TRIES, Bracket, FittedLine, fit_line, next_batch


def test_a_line_is_recovered() -> None:
    line = fit_line([(batch, 1000 + 7 * batch) for batch in (1, 2, 4, 8)])
    assert line is not None
    assert (line.base, line.slope, line.largest) == (pytest.approx(1000), pytest.approx(7), 8)
    assert line.largest_batch(1000 + 7 * 50) == 50
    assert line.largest_batch(10) == 0


def test_small_batches_that_lie_elsewhere_are_left_out() -> None:
    line = fit_line([(batch, max(5000, 1000 + 700 * batch)) for batch in (1, 2, 4, 8, 16, 32)])
    assert line is not None
    assert line.slope == pytest.approx(700, rel=0.02)


def test_one_batch_makes_no_line_and_no_growth_no_prediction() -> None:
    for points in ([], [(4, 100)], [(4, 100), (4, 120)]):
        assert fit_line(points) is None
    assert FittedLine(base=10, slope=0, largest=8).largest_batch(100) is None


def search(truth: int, predicted: int | None, fits: int = 8) -> tuple[Bracket, int]:
    """Try until the search ends; batches up to `truth` fit."""
    bracket, tries = Bracket(fits=fits, fails=None), 0
    while (batch := next_batch(bracket, predicted, tries)) is not None:
        assert batch > bracket.fits
        assert bracket.fails is None or batch < bracket.fails
        tries += 1
        if batch <= truth:
            bracket = Bracket(fits=batch, fails=bracket.fails)
        else:
            bracket = Bracket(fits=bracket.fits, fails=batch)
    return bracket, tries


@settings(max_examples=60)
@given(st.integers(8, 1_000_000), st.floats(0.96, 1.05))
def test_a_good_prediction_needs_few_tries(truth: int, error: float) -> None:
    bracket, tries = search(truth, int(truth * error))
    assert bracket.is_closed
    assert bracket.fails is not None
    assert bracket.fits <= truth < bracket.fails
    assert tries <= 8


@settings(max_examples=60)
@given(st.integers(8, 1_000_000), st.one_of(st.none(), st.integers(0, 10_000_000)))
def test_any_prediction_ends_with_a_true_bracket(truth: int, predicted: int | None) -> None:
    bracket, tries = search(truth, predicted)
    assert tries <= MOST_TRIES
    assert bracket.fits <= truth
    assert bracket.fails is None or truth < bracket.fails


def test_the_search_ends_at_a_batch_of_one_or_of_all_samples() -> None:
    assert next_batch(Bracket(fits=0, fails=1), None, 0) is None
    assert next_batch(Bracket(fits=0, fails=8), None, 0) == 4
    assert Bracket(fits=2000, fails=None, most=2000).is_closed
    assert not Bracket(fits=8, fails=None, most=2000).is_closed
    assert not Bracket(fits=8, fails=1500, most=2000).is_closed
