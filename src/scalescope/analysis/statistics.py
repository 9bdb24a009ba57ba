"""Launch-level statistics: the launch is the unit, never the step.

Launches of two configurations that were made in the same rounds are compared round by round; others by
Welch's test. Sources: Student's t and Welch's unequal-variance interval as in any textbook; the incomplete
beta function by its continued fraction (Lentz's method).
"""

import functools
import math
import operator
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import overload

_LARGEST_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; no interval where there are too few launches for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def bounds(self) -> list[float | None] | None:
        """Both ends of the interval, as files have them; None without one."""
        return [self.low, self.high] if self.has_interval else None


@dataclass(frozen=True, slots=True)
class Sample(Sequence[float]):
    """A figure of several launches, each with the round that it was made in; None means no round."""

    values: tuple[float, ...]
    rounds: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return self.values[index]

    def map(self, change: Callable[[float], float]) -> "Sample":
        return Sample(tuple(map(change, self.values)), self.rounds)

    @property
    def by_round(self) -> dict[Hashable, float]:
        return {
            round_: value
            for round_, value in zip(self.rounds, self.values, strict=True)
            if round_ is not None
        }


def common_rounds(samples: Sequence[Sequence[float]]) -> list[tuple[float, ...]] | None:
    """The values of each round that all samples have; None where there is no such round."""
    first, *others = [sample.by_round if isinstance(sample, Sample) else {} for sample in samples]
    rounds = [round_ for round_ in first if all(round_ in other for other in others)]
    return [(first[round_], *(other[round_] for other in others)) for round_ in rounds] or None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def exponential(log: float) -> float:
    """e to that power; the largest number that there is where stored logs are absurd."""
    return math.exp(min(log, _LARGEST_LOG))


def mean_of_logs(logs: Sequence[float]) -> Estimate:
    """exp(mean of y) with the interval mean ± t·s/√k, exponentiated."""
    mean = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return Estimate(exponential(mean))
    half = t_quantile(0.975, len(logs) - 1) * _standard_error(logs)
    return Estimate(exponential(mean), exponential(mean - half), exponential(mean + half))


def ratio_of_logs(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """exp(difference of the means of logs) with its interval."""
    contrast = contrast_of(numerator, denominator)
    if contrast is None:
        return Estimate(exponential(difference_of_means(numerator, denominator).value))
    return ratio_of_contrast(contrast, 0.975)


def ratio_of_contrast(contrast: "Contrast", probability: float) -> Estimate:
    """exp(difference), with an interval whose ends are each exceeded with 1 − `probability`."""
    half = contrast.half_width(probability)
    difference = contrast.difference
    return Estimate(exponential(difference), exponential(difference - half), exponential(difference + half))


def difference_of_means(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """mean(left) − mean(right) with its interval."""
    return sum_of_means(left, negative(right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """mean(left) − mean(right), the variance of that, and the degrees of freedom of the variance."""

    difference: float
    variance: float
    freedom: float

    def half_width(self, probability: float) -> float:
        """Half of an interval whose ends are each exceeded with 1 − `probability`."""
        return 0.0 if self.variance == 0.0 else t_quantile(probability, self.freedom) * self.deviation

    def interval(self, probability: float) -> Estimate:
        half = self.half_width(probability)
        return Estimate(self.difference, self.difference - half, self.difference + half)

    @property
    def deviation(self) -> float:
        return math.sqrt(self.variance)


def contrast_of(
    left: Sequence[float], right: Sequence[float], *, extra: tuple[float, float] = (0.0, 1.0)
) -> Contrast | None:
    """The contrast of two means, by their common rounds or else by Welch; None where there is a single value.

    `extra` is a variance that both sides' values do not show, and its degrees of freedom.
    """
    parts = _variances((left, negative(right)))
    if parts is None:
        return None
    difference = math.fsum(left) / len(left) - math.fsum(right) / len(right)
    return contrast_of_parts(difference, [*parts, extra])


def _variances(samples: Sequence[Sequence[float]]) -> list[tuple[float, float]] | None:
    """The variance of the sum of means, in parts with their degrees of freedom; None where it is unknown."""
    rounds = common_rounds(samples)
    if rounds is not None:
        samples = [[math.fsum(values) for values in rounds]]
    if any(len(sample) < 2 for sample in samples):
        return None
    return [(_standard_error(sample) ** 2, len(sample) - 1.0) for sample in samples]


def contrast_of_parts(difference: float, parts: Iterable[tuple[float, float]]) -> Contrast:
    """A contrast whose variance is a sum; each part has its degrees of freedom (Satterthwaite 1946)."""
    known = [(variance, freedom) for variance, freedom in parts if variance > 0.0]
    total = math.fsum(variance for variance, _ in known)
    # Relative to the total: squares of small variances vanish.
    shares = math.fsum((variance / total) ** 2 / freedom for variance, freedom in known)
    return Contrast(difference=difference, variance=total, freedom=1.0 / shares if known else 1.0)


def sum_of_means(*samples: Sequence[float]) -> Estimate:
    """The sum of the means of samples: by their common rounds, or else by Welch and Satterthwaite.

    Samples with a minus sign make a difference: `negative` gives them.
    """
    value = math.fsum(math.fsum(sample) / len(sample) for sample in samples)
    parts = _variances(samples)
    return Estimate(value) if parts is None else contrast_of_parts(value, parts).interval(0.975)


def negative(values: Sequence[float]) -> Sequence[float]:
    return values.map(operator.neg) if isinstance(values, Sample) else [-value for value in values]


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


def moved(estimate: Estimate, value: float) -> Estimate:
    """The same interval around another value."""
    if estimate.low is None or estimate.high is None:
        return Estimate(value)
    return Estimate(value, estimate.low + value - estimate.value, estimate.high + value - estimate.value)
