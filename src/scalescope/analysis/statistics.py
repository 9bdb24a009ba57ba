"""Launch-level statistics: the launch is the unit, never the step.

Sources: Student's t and Welch's unequal-variance interval as in any textbook; the incomplete beta function by
its continued fraction (Lentz's method).
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; no interval where there are too few launches for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None


def mean_of_logs(logs: Sequence[float]) -> Estimate:
    """exp(mean of y) with the interval mean ± t·s/√k, exponentiated."""
    mean = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return Estimate(math.exp(mean))
    half = t_quantile(0.975, len(logs) - 1) * _standard_error(logs)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def ratio_of_logs(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """exp(difference of the means of logs) with Welch's interval."""
    difference = difference_of_means(numerator, denominator)
    if difference.low is None or difference.high is None:
        return Estimate(math.exp(difference.value))
    return Estimate(math.exp(difference.value), math.exp(difference.low), math.exp(difference.high))


def difference_of_means(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """mean(left) − mean(right) with Welch's interval."""
    return sum_of_means(left, negative(right))


def sum_of_means(*samples: Sequence[float]) -> Estimate:
    """The sum of the means of independent samples, with the interval of Welch and Satterthwaite.

    Samples with a minus sign make a difference: `negative` gives them.
    """
    value = math.fsum(math.fsum(sample) / len(sample) for sample in samples)
    if any(len(sample) < 2 for sample in samples):
        return Estimate(value)
    variances = [_standard_error(sample) ** 2 for sample in samples]
    total = math.fsum(variances)
    if total == 0.0:
        return Estimate(value, value, value)
    freedom = total**2 / math.fsum(v**2 / (len(s) - 1) for v, s in zip(variances, samples, strict=True))
    half = t_quantile(0.975, freedom) * math.sqrt(total)
    return Estimate(value, value - half, value + half)


def negative(values: Sequence[float]) -> list[float]:
    return [-value for value in values]


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """The mean with its interval, mean ± t·s/√k."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    half = t_quantile(0.975, len(values) - 1) * _standard_error(values)
    return Estimate(mean, mean - half, mean + half)


def slope(times: Sequence[float], values: Sequence[float]) -> Estimate | None:
    """Least-squares slope of values over times with its interval; None where it is undefined."""
    count = len(times)
    middle = math.fsum(times) / count
    spread = math.fsum((t - middle) ** 2 for t in times)
    if count < 3 or spread == 0.0:
        return None
    mean = math.fsum(values) / count
    pairs = list(zip(times, values, strict=True))
    gradient = math.fsum((t - middle) * (v - mean) for t, v in pairs) / spread
    residual = math.fsum((v - mean - gradient * (t - middle)) ** 2 for t, v in pairs)
    half = t_quantile(0.975, count - 2) * math.sqrt(residual / (count - 2) / spread)
    return Estimate(gradient, gradient - half, gradient + half)


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; None for a single value."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / statistics.fmean(values)


@functools.lru_cache(maxsize=1024)  # most configurations have as many launches as the others
def t_quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees stays below with `probability` ≥ 0.5."""
    assert 0.5 <= probability < 1.0 and freedom > 0.0
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def t_probability(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees stays below `t` ≥ 0."""
    tail = _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
    return 1.0 - 0.5 * tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # where the continued fraction converges slowly, use symmetry
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(abs(1.0 - (a + b) * x / (a + 1.0)), tiny)
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 / (1.0 + coefficient * d or tiny)
            c = 1.0 + coefficient / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return fraction


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
