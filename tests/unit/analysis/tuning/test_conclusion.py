"""What the launches of a search allow to say."""

import math

import pytest

from scalescope.analysis.tuning.conclusion import conclude
from scalescope.analysis.tuning.search import Option, TuningSearch
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, parts_of_step
from scalescope.analysis.tuning.tuned_launches import BASELINE, TunedLaunch, TunedLaunches
from tests.builders.results import combination, launch, launches

SEARCH = TuningSearch(
    options=[Option(name=name, setting=name) for name in "abc"],
    model=StepModel(parts_of={BASELINE: parts_of_step()}.get),
)
A, AB = combination("a"), combination("a+b")


def confirming(base: str, **rates: float) -> list[TunedLaunch]:
    """A launch of each, made to confirm the base; `now` are the settings as they are."""
    return [
        launch("" if names == "now" else names.replace("_", "+"), rate, kind="confirm", base=base)
        for names, rate in rates.items()
    ]


def test_nothing_is_said_without_launches_to_compare() -> None:
    conclusion = conclude(SEARCH, launches(launch("", None)))
    assert (conclusion.winner, conclusion.recommended, conclusion.at_most) == (BASELINE, False, None)
    conclusion = conclude(SEARCH, launches(launch("", 0.0)))
    assert (conclusion.winner, conclusion.recommended, conclusion.at_most) == (BASELINE, False, None)


def test_a_confirmed_winner_is_recommended_with_the_gain_of_its_new_launches() -> None:
    made = launches(launch("", 0.0), launch("a", 0.5), confirming("a", a=0.4, now=0.0))
    conclusion = conclude(SEARCH, made)
    assert (conclusion.winner, conclusion.recommended, conclusion.is_confirmed) == (A, True, True)
    assert conclusion.gain is not None and conclusion.gain.value == pytest.approx(0.4)
    assert conclusion.support == {"a": "confirmed"}
    assert conclusion.at_most is None


def test_a_large_gain_is_recommended_before_it_is_confirmed() -> None:
    many = [launch("", 0.0, kind="refine"), launch("a", 0.7, kind="refine")]
    conclusion = conclude(SEARCH, launches(launch("", 0.0), launch("a", 0.7), many, deviation=0.002))
    assert (conclusion.winner, conclusion.recommended, conclusion.is_confirmed) == (A, True, False)


def test_a_gain_that_new_launches_do_not_show_is_not_recommended() -> None:
    made = launches(
        launch("", 0.0), launch("a", 0.3), confirming("a", a=0.0, now=0.0), confirming("a", a=0.0, now=0.0)
    )
    conclusion = conclude(SEARCH, made)
    assert not conclusion.recommended
    assert conclusion.at_most is not None


def test_a_lever_that_gave_nothing_in_the_end_is_dropped() -> None:
    made = [launch("", 0.0), launch("a", 0.5), launch("a+b", 0.6, base="a")]
    for _ in range(2):
        made += confirming("a+b", a_b=0.5, now=0.0, a=0.5, b=0.0)
    conclusion = conclude(SEARCH, launches(made))
    assert (conclusion.winner, conclusion.recommended) == (A, True)
    assert conclusion.dropped == combination("b")
    assert "b" not in conclusion.support


def test_levers_that_were_not_confirmed_one_by_one_are_labelled_so() -> None:
    made = [launch("", 0.0), launch("a", 0.5), launch("a+b", 0.7, base="a")]
    made += confirming("a+b", a_b=0.7, now=0.0, a=0.5)
    conclusion = conclude(SEARCH, launches(made))
    assert conclusion.winner == AB
    assert conclusion.support == {"a": "when added", "b": "confirmed"}


def test_what_failed_while_it_was_confirmed_is_not_recommended_unless_it_was_cut_short() -> None:
    made = [launch("", 0.0), launch("a", 0.5), *confirming("a", a=0.5, now=0.0)]
    failed = launch("a", None, kind="confirm", base="a")
    assert conclude(SEARCH, launches(made, failed)).winner == BASELINE
    cut = launch("a", None, kind="confirm", base="a", cut_short=True)
    conclusion = conclude(SEARCH, launches(made, cut))
    assert (conclusion.winner, conclusion.recommended) == (A, True)


def test_another_loss_is_never_recommended() -> None:
    made = launches(launch("", 0.0), launch("a", 0.5, refused=True), launch("b", 0.0))
    conclusion = conclude(SEARCH, made)
    assert conclusion.winner == BASELINE
    assert conclusion.at_most is not None and conclusion.at_most < math.expm1(0.5)


@pytest.mark.parametrize("count", [1, 3])
def test_the_bound_is_not_below_what_tables_show(count: int) -> None:
    """Of any of the combinations, by all launches or by those that confirm."""
    made: list[TunedLaunch] = [launch("", 0.0)]
    made += [launch(name, 0.002) for name in "abc"[:count]]
    made += confirming("a", a=0.02, now=0.0)
    measured = launches(made)
    conclusion = conclude(SEARCH, measured)
    assert not conclusion.recommended and conclusion.at_most is not None
    among: list[TunedLaunches | None] = [None, measured.of_stages(("confirm",))]
    for levers in measured.combinations[1:]:
        for stage in among:
            difference = measured.difference(levers, BASELINE, stage)
            if difference is not None:
                assert math.expm1(difference.high(0.025)) <= conclusion.at_most + 1e-12


def test_more_launches_exclude_smaller_gains() -> None:
    few = launches(launch("", 0.0), launch("a", 0.0))
    many = launches([launch("", 0.001 * n) for n in range(4)], [launch("a", 0.001 * n) for n in range(4)])
    bounds = [conclude(SEARCH, made).at_most for made in (few, many)]
    assert bounds[0] is not None and bounds[1] is not None
    assert 0.0 < bounds[1] < bounds[0]


def test_levers_of_which_nothing_is_expected_are_named() -> None:
    effects = {"a": LeverEffect(factors={"products": 0.5}), "b": LeverEffect(factors={"load": 0.5})}
    known = TuningSearch(
        options=SEARCH.options, model=StepModel(parts_of={BASELINE: parts_of_step()}.get, effects=effects)
    )
    assert conclude(known, launches(launch("", 0.0))).unpromising == {"b"}  # of c nothing is known
