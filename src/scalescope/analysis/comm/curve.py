"""Collective curve: time against bytes, interpolated where it was measured and refused where it was not.

A two-parameter fit misses real curves by 19 to 41 % and most at DDP's bucket sizes, so the curve itself is
kept; the fits stand beside it with their errors.
"""

import bisect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalescope.errors import BadInput

Terms = Callable[[float], tuple[float, ...]]


def alpha_beta(size: float) -> tuple[float, ...]:
    """The terms of a + bS."""
    return 1.0, size


def with_root(size: float) -> tuple[float, ...]:
    """The terms of a + bS + c√S."""
    return 1.0, size, math.sqrt(size)


@dataclass(frozen=True, slots=True)
class Curve:
    """Time of one collective on one number of ranks; points are sorted by size, times never fall."""

    points: tuple[tuple[int, float], ...]

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> "Curve":
        """Take several times of one size by their mean, and flatten what noise made fall."""
        by_size: dict[int, list[float]] = {}
        for size, time_s in points:
            if size > 0:
                by_size.setdefault(size, []).append(time_s)
        sizes = sorted(by_size)
        times = _monotone([statistics.fmean(by_size[size]) for size in sizes])
        return cls(tuple(zip(sizes, times, strict=True)))

    def time_s(self, size: float) -> float:
        """Log–log interpolation inside the measured range; outside it the time is unknown."""
        sizes = [point[0] for point in self.points]
        if not sizes or not sizes[0] <= size <= sizes[-1]:
            span = f"{sizes[0]} to {sizes[-1]}" if sizes else "no"
            raise BadInput(f"{size:.0f} bytes are outside the measured range of {span} bytes")
        right = bisect.bisect_left(sizes, size)
        if sizes[right] == size:
            return self.points[right][1]
        (s0, t0), (s1, t1) = self.points[right - 1], self.points[right]
        share = math.log(size / s0) / math.log(s1 / s0)
        return math.exp(math.log(t0) + share * math.log(t1 / t0))


def _monotone(times: list[float]) -> list[float]:
    """Isotonic regression of logs (pool adjacent violators): the nearest sequence that never falls."""
    pools: list[tuple[float, int]] = []
    for time_s in times:
        pools.append((math.log(time_s), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, n), (right, m) = pools[-2:]
            pools[-2:] = [((left * n + right * m) / (n + m), n + m)]
    return [math.exp(value) for value, count in pools for _ in range(count)]


def leave_one_out_errors(points: Sequence[tuple[int, float]]) -> list[float]:
    """Relative error at every inner point when the curve has to do without it."""
    errors = []
    for left_out in range(1, len(points) - 1):
        rest = [point for n, point in enumerate(points) if n != left_out]
        size, time_s = points[left_out]
        errors.append(abs(Curve.through(rest).time_s(size) / time_s - 1.0))
    return errors


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of a formula and its median relative error on the points it was fitted to."""

    coefficients: tuple[float, ...]
    median_error: float


def fit(points: Sequence[tuple[int, float]], terms: Terms) -> Fit | None:
    """Least squares of relative errors; None with too few points."""
    rows = [tuple(term / time_s for term in terms(float(size))) for size, time_s in points]
    width = len(rows[0]) if rows else 0
    if len(rows) <= width:
        return None
    normal = [[math.fsum(r[i] * r[j] for r in rows) for j in range(width)] for i in range(width)]
    target = [math.fsum(r[i] for r in rows) for i in range(width)]
    solution = _solve(normal, target)
    if solution is None:
        return None
    errors = [
        abs(sum(c * t for c, t in zip(solution, terms(float(size)), strict=True)) / time_s - 1.0)
        for size, time_s in points
    ]
    return Fit(tuple(solution), statistics.median(errors))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivots, on columns scaled to one."""
    size = len(right)
    scales = [math.sqrt(matrix[i][i]) or 1.0 for i in range(size)]
    rows = [
        [matrix[i][j] / (scales[i] * scales[j]) for j in range(size)] + [right[i] / scales[i]]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-14:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [rows[i][size] / rows[i][i] / scales[i] for i in range(size)]
