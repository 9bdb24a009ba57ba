"""Launches of a search: what they take, how sure their differences are, and what they allow to say."""

import math
import random

import pytest

from scalescope.analysis.tuning.conclusion import conclude
from scalescope.analysis.tuning.launch_costs import LaunchCosts
from scalescope.analysis.tuning.search import Option, TuningSearch
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, parts_of_step
from scalescope.analysis.tuning.tuned_launches import (
    BASELINE,
    Combination,
    TunedLaunch,
    TunedLaunches,
    usual_deviation,
)
from scalescope.results.other_load import OtherLoad
from tests.builders.results import combination, launch, launches

A, B = combination("a"), combination("b")
BUSY = OtherLoad(cores=2, other_cores=1.5, rank_waits=(0.5,))
QUIET = OtherLoad(cores=2, other_cores=0.0, rank_waits=(0.0,))


def test_launches_are_compared_in_pairs_under_alike_load() -> None:
    made = launches(
        launch("", 0.0, load=QUIET), launch("a", 0.1, load=QUIET),
        launch("a", -0.9, load=BUSY), launch("", -1.0, load=BUSY),
        launch("", 0.02, load=QUIET), launch("a", -0.8, load=BUSY),
    )  # fmt: skip
    assert made.pairs(A, BASELINE) == pytest.approx([0.1, 0.1])
    difference = made.difference(A, BASELINE)
    assert difference is not None and difference.value == pytest.approx(0.1)
    made = launches(launch("", 0.0, load=QUIET), launch("a", -0.9, load=BUSY))
    assert made.difference(A, BASELINE) is None


def test_launches_count_unless_they_failed_or_were_disturbed() -> None:
    made = launches(launch("", 0.0), launch("b", 0.1), launch("a", 0.2), launch("b", 0.3), launch("c", None))
    assert made.combinations == (BASELINE, B, A)
    assert (made.count(B), made.count(combination("c"))) == (2, 0)
    assert made.mean(B) == pytest.approx(0.2)
    made = launches(launch("a", 0.1), launch("a", 9.0, load=BUSY))
    assert (made.count(A), made.made(A), made.mean(A)) == (1, 2, 0.1)
    made = launches(launch("", None), launch("a", None), launch("b", 0.5, refused=True), launch("c", 0.1))
    assert made.failed == {A, B}
    assert launches(launch("a", None, cut_short=True)).failed == frozenset()
    made = launches(launch("a", 0.1), launch("a", None, cut_short=True), launch("b", 0.1), launch("b", None))
    assert made.failed == {B}


def test_a_difference_has_the_pooled_spread() -> None:
    made = launches(launch("", 0.0), launch("", 0.02), launch("a", 0.1), launch("b", 0.1), launch("b", 0.16))
    variance, freedom = made.spread()
    assert freedom == 2.0 + 1.0 + 1.0
    assert variance == pytest.approx((2.0 * 0.01**2 + 0.0002 + 0.0018) / 4.0)
    difference = made.difference(A, BASELINE)
    assert difference is not None
    assert (difference.value, difference.launches) == (pytest.approx(0.08), 1)  # the nearest pair
    assert made.difference(B, BASELINE, among=launches(*made.launches[1:])) is not None


def test_few_launches_are_judged_by_the_usual_spread() -> None:
    calm = launches(launch("", 0.0), launch("a", 0.1), deviation=0.01).difference(A, BASELINE)
    loaded = launches(launch("", 0.0), launch("a", 0.1), deviation=0.2).difference(A, BASELINE)
    assert calm is not None and loaded is not None
    assert calm.low(0.05) > 0.0 > loaded.low(0.05)
    assert calm.low(0.01) < calm.low(0.05) < calm.value < calm.high(0.05) < calm.high(0.01)
    same = launches(launch("", 0.0), launch("", 0.0), launch("a", 0.02), launch("a", 0.02), deviation=0.02)
    difference = same.difference(A, BASELINE)
    assert difference is not None
    assert difference.low(0.05) < 0.0


def test_launches_of_some_stages_are_compared_among_themselves() -> None:
    made = launches(
        launch("", 0.0),
        launch("a", 0.5),
        launch("", 0.0, kind="confirm"),
        launch("a", 0.1, kind="confirm"),
        launch("a", 0.2, kind="confirm"),
    )
    confirming = made.of_stages(("confirm",))
    assert (confirming.count(A), made.count(A)) == (2, 3)
    difference = made.difference(A, BASELINE, among=confirming)
    assert difference is not None
    assert difference.value == pytest.approx(0.1)  # of the one pair
    # Not all launches instead: nothing is confirmed before something is launched to confirm it.
    made = launches(launch("", 0.0), launch("a", 0.5))
    assert made.difference(A, BASELINE, among=made.of_stages(("confirm",))) is None
    made = launches(launch("", 0.0), launch("a", None))
    assert made.difference(A, BASELINE) is None
    assert made.difference(BASELINE, A) is None


def test_identical_settings_are_rarely_called_faster() -> None:
    draw = random.Random(5)
    wrong = 0
    for _ in range(200):
        made = launches(
            [launch("", draw.gauss(0.0, 0.02)) for _ in range(3)],
            [launch("a", draw.gauss(0.0, 0.02)) for _ in range(3)],
            deviation=0.02,
        )
        difference = made.difference(A, BASELINE)
        assert difference is not None
        wrong += difference.low(0.05) > 0.0
    assert wrong < 20  # 10 are expected


def test_a_loaded_machine_is_expected_to_vary_more() -> None:
    assert usual_deviation("cuda") < usual_deviation("cpu") < usual_deviation("cpu", loaded=True)
    assert math.isclose(usual_deviation("cuda", loaded=True), usual_deviation("cpu", loaded=True))


# what the next launches take


MARGIN = 1.1


def program(levers: Combination) -> Combination | None:
    """`compile` compiles, anew for every precision."""
    return levers & {"compile", "bf16"} if "compile" in levers else None


def cost(names: str, *made: TunedLaunch, base: str = "") -> float:
    costs = LaunchCosts(measured=launches(*made), program=program)
    return costs.of(combination(names), combination(base)) / MARGIN


def test_what_was_never_launched_takes_what_its_base_took_or_most_did() -> None:
    assert cost("a", launch("", duration_s=10.0), launch("a", duration_s=20.0)) == pytest.approx(20.0)
    made = (launch("", duration_s=10.0), launch("a", duration_s=20.0), launch("b", duration_s=12.0))
    assert cost("a+c", *made, base="a") == pytest.approx(20.0)
    assert cost("c", *made) == pytest.approx(10.0)
    assert cost("c+d", *made, base="d") == pytest.approx(12.0)
    assert LaunchCosts(measured=launches()).of(BASELINE) > 0.0


def test_compiling_takes_long_once_for_every_precision() -> None:
    plain = launch("", duration_s=10.0)
    guess = cost("compile", plain)
    assert guess > 20.0
    first = launch("compile", duration_s=70.0)
    again = cost("compile", plain, first)
    assert 10.0 < again < 70.0
    assert cost("compile", plain, first, launch("compile", duration_s=15.0)) == pytest.approx(15.0)
    made = (
        launch("", duration_s=10.0),
        launch("compile", duration_s=70.0),
        launch("compile", duration_s=15.0),
    )
    assert cost("compile+bf16", *made) == pytest.approx(70.0)
    assert cost("compile+fused", *made) == pytest.approx(15.0)


def test_what_was_cut_short_takes_longer_than_it_was_given() -> None:
    plain, cut = launch("", duration_s=10.0), launch("a", None, duration_s=50.0, cut_short=True)
    assert cost("a", plain, cut) > 50.0
    assert cost("a+b", plain, cut, base="b") > 50.0  # on another base too
    assert cost("b", plain, cut) == pytest.approx(10.0)
    assert cost("", plain, cut) == pytest.approx(10.0)
    made = (launch("", duration_s=10.0), launch("a", duration_s=10.0))
    cut = launch("a", None, kind="confirm", base="a", duration_s=5.0, cut_short=True)
    without = launch("", None, kind="confirm", base="a", duration_s=50.0, cut_short=True)
    for names in ("", "a", "b"):
        assert cost(names, *made, cut, without) == pytest.approx(10.0)


# what they allow to say


SEARCH = TuningSearch(
    options=[Option(name=name, setting=name) for name in "abc"],
    model=StepModel(parts_of={BASELINE: parts_of_step()}.get),
)
AB = combination("a+b")


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
