"""Intervals and quantiles, held against scipy and against simulated truth."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from scalescope.analysis.statistics import (
    Estimate,
    coefficient_of_variation,
    difference_of_means,
    mean_of_logs,
    ratio_of_logs,
    slope,
    t_quantile,
)

PROBABILITIES = (0.6, 0.8, 0.975, 0.999)
DEGREES = (*range(1, 13), 1.01, 1.5, 2.25, 4.999, 33.3, 100, 199.9)

Pair = tuple[list[float], list[float]]


def draw(seed: int, count: int, mean: float = 0.0, spread: float = 1.0) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, spread) for _ in range(count)]


PAIRS: list[Pair] = [
    (draw(1, 5, 3.0, 0.02), draw(2, 5, 3.0, 0.02)),
    (draw(3, 5, 4.0, 0.30), draw(4, 9, 3.0, 0.01)),
    (draw(5, 2, -1.0, 2.0), draw(6, 2, 1.0, 0.5)),
    (draw(7, 40, 0.0, 1.0), draw(8, 3, 0.1, 5.0)),
]


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_t_quantile_agrees_with_scipy(probability: float) -> None:
    for freedom in DEGREES:
        expected = float(stats.t.ppf(probability, freedom))
        assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=0), freedom
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959963985, rel=1e-6)


@pytest.mark.parametrize("logs", [draw(9, 2), draw(11, 30, -2.0, 0.5)])
def test_mean_of_logs_is_the_exponential_of_the_t_interval(logs: list[float]) -> None:
    estimate = mean_of_logs(logs)
    error = float(stats.sem(logs))
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=math.fsum(logs) / len(logs), scale=error)
    assert estimate.value == pytest.approx(float(stats.gmean([math.exp(log) for log in logs])))
    assert estimate.low == pytest.approx(math.exp(low))
    assert estimate.high == pytest.approx(math.exp(high))


@pytest.mark.parametrize("pair", PAIRS)
def test_differences_and_ratios_have_welchs_interval(pair: Pair) -> None:
    left, right = pair
    welch = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    expected = sum(left) / len(left) - sum(right) / len(right), float(welch.low), float(welch.high)
    difference, ratio = difference_of_means(left, right), ratio_of_logs(left, right)
    assert (difference.value, difference.low, difference.high) == pytest.approx(expected)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(tuple(map(math.exp, expected)))


def test_one_launch_has_no_interval_and_equal_ones_one_without_width() -> None:
    several = draw(12, 5)
    for estimate in (
        mean_of_logs([1.0]),
        difference_of_means([1.0], several),
        difference_of_means(several, [1.0]),
        ratio_of_logs([1.0], [2.0]),
    ):
        assert not estimate.has_interval
    assert mean_of_logs([1.0]).value == pytest.approx(math.e)
    assert ratio_of_logs([1.0], [2.0]).value == pytest.approx(1 / math.e)
    assert difference_of_means([3.0] * 5, [1.0] * 5) == Estimate(2.0, 2.0, 2.0)
    assert mean_of_logs([0.0] * 5) == Estimate(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("count", "trend"), [(3, 0.5), (40, -2.0)])
def test_slope_agrees_with_linregress(count: int, trend: float) -> None:
    times = [13.0 * index + noise for index, noise in enumerate(draw(13, count))]
    values = [trend * time + noise for time, noise in zip(times, draw(14, count), strict=True)]
    fitted = slope(times, values)
    expected = stats.linregress(times, values)
    half = float(stats.t.ppf(0.975, count - 2)) * float(expected.stderr)
    assert fitted is not None
    assert fitted.value == pytest.approx(float(expected.slope))
    assert fitted.low == pytest.approx(float(expected.slope) - half)
    assert fitted.high == pytest.approx(float(expected.slope) + half)


def test_slopes_and_variation_of_too_few_values_are_undefined() -> None:
    assert slope([0.0, 1.0], [0.0, 1.0]) is None
    assert slope([5.0, 5.0, 5.0], [0.0, 1.0, 2.0]) is None
    values = [99.0, 100.0, 101.0, 104.0]
    expected = float(stats.variation(values, ddof=1))
    assert coefficient_of_variation(values) == pytest.approx(expected)
    assert coefficient_of_variation([3.0]) is None


def of_one_sample(source: random.Random) -> tuple[Estimate, float]:
    return mean_of_logs(launches(source, 6.0, 0.03)), math.exp(6.0)


def of_a_ratio(source: random.Random) -> tuple[Estimate, float]:
    ratio = ratio_of_logs(launches(source, 6.5, 0.03), launches(source, 6.0, 0.02))
    return ratio, math.exp(0.5)


def launches(source: random.Random, mean: float, spread: float, count: int = 5) -> Sequence[float]:
    return [source.gauss(mean, spread) for _ in range(count)]


@pytest.mark.parametrize("estimate", [of_one_sample, of_a_ratio])
def test_intervals_of_five_launches_cover_the_truth(
    estimate: Callable[[random.Random], tuple[Estimate, float]],
) -> None:
    source = random.Random("coverage")
    covered = 0
    for _ in range(300):
        interval, truth = estimate(source)
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= truth <= interval.high
    assert 0.92 <= covered / 300 <= 0.98
