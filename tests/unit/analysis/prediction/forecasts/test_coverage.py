"""The exact binomial interval."""

import pytest
from scipy import stats

from scalescope.analysis.prediction.forecasts.coverage import binomial_interval


@pytest.mark.parametrize(("successes", "count"), [(0, 5), (5, 5), (1, 1), (9, 10), (54, 60), (109, 120)])
def test_it_is_clopper_and_pearsons(successes: int, count: int) -> None:
    expected = stats.binomtest(successes, count).proportion_ci(0.95, "exact")
    interval = binomial_interval(successes, count)
    assert interval.value == successes / count
    assert interval.low == pytest.approx(expected.low, abs=1e-9)
    assert interval.high == pytest.approx(expected.high, abs=1e-9)
