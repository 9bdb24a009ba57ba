"""The statistics that decide a verdict: Welch's test, Holm's correction and the smallest effect."""

import math
import random
import statistics

import pytest
from scipy import stats

from scalescope.analysis.statistics import t_quantile
from scalescope.analysis.verdicts import holm, p_value, smallest_effect


@pytest.mark.parametrize("seed", range(20))
def test_the_p_value_is_that_of_welch(seed: int) -> None:
    draw = random.Random(seed)
    left = [draw.gauss(0.0, 1.0) for _ in range(draw.randint(2, 9))]
    right = [draw.gauss(seed / 5, 3.0) for _ in range(draw.randint(2, 9))]
    expected = stats.ttest_ind(left, right, equal_var=False).pvalue
    assert p_value(left, right) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert p_value(right, left) == p_value(left, right)


def test_the_p_value_where_nothing_varies() -> None:
    assert p_value([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert p_value([1.0, 1.0], [2.0, 2.0]) == 0.0


@pytest.mark.parametrize(("left", "right"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_one_launch_is_no_test(left: list[float], right: list[float]) -> None:
    assert p_value(left, right) is None
    assert smallest_effect(left, right) is None


def test_holm_by_hand() -> None:
    # 0.01 ≤ 0.05/4, 0.012 ≤ 0.05/3, 0.03 > 0.05/2: it and all larger ones fall, though 0.04 ≤ 0.05/1.
    assert holm([0.04, 0.01, 0.03, 0.012]) == [False, True, False, True]
    assert holm([0.013, 0.2, 0.9, 0.9]) == [False] * 4  # 0.013 > 0.05/4
    assert holm([0.05]) == [True]
    assert holm([]) == []


def test_what_was_not_tested_costs_the_others_nothing() -> None:
    assert holm([None, 0.05, None]) == [False, True, False]


def test_the_smallest_effect_is_that_of_the_formula() -> None:
    left, right = [0.0, 0.02, 0.01, 0.03, 0.00], [0.01, 0.05, 0.03, 0.02, 0.04]
    spread = math.sqrt((statistics.variance(left) + statistics.variance(right)) / 2.0)
    expected = (t_quantile(0.975, 8) + t_quantile(0.8, 8)) * spread * math.sqrt(2.0 / 5.0)
    assert smallest_effect(left, right) == pytest.approx(math.expm1(expected))
    # scipy's quantiles, so that ours are not compared with themselves alone
    quantiles = stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8)
    assert quantiles * spread * math.sqrt(0.4) == pytest.approx(expected)


def test_the_smallest_effect_of_unequal_numbers_lies_between_those_of_equal_ones() -> None:
    few, many = [0.00, 0.02], [0.00, 0.02] * 5
    both = smallest_effect(few, many)
    least, most = smallest_effect(many, many), smallest_effect(few, few)
    assert least is not None and both is not None and most is not None
    assert least < both < most
