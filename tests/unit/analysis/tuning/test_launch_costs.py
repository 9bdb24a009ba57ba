"""What the next launches take, learnt from those that were made."""

import pytest

from scalescope.analysis.tuning.launch_costs import LaunchCosts
from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination, TunedLaunch
from tests.builders.results import combination, launch, launches

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
