"""Launches of a search: what they count for, and how sure differences between them are."""

import math
import random

import pytest

from scalescope.analysis.tuning.tuned_launches import BASELINE, usual_deviation
from tests.builders.results import combination, launch, launches

A, B = combination("a"), combination("b")


def test_launches_count_unless_they_failed_or_were_disturbed() -> None:
    made = launches(launch("", 0.0), launch("b", 0.1), launch("a", 0.2), launch("b", 0.3), launch("c", None))
    assert made.combinations == (BASELINE, B, A)
    assert (made.count(B), made.count(combination("c"))) == (2, 0)
    assert made.mean(B) == pytest.approx(0.2)
    made = launches(launch("a", 0.1), launch("a", 9.0, counts=False))
    assert (made.count(A), made.mean(A)) == (1, 0.1)
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
    assert (difference.value, difference.launches) == (pytest.approx(0.09), 1)
    assert difference.contrast.variance == pytest.approx(variance * 1.5)


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


def test_launches_of_some_stages_are_compared_with_the_spread_of_all() -> None:
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
    assert difference.value == pytest.approx(0.15)
    assert difference.contrast.freedom == made.spread()[1]
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
