"""The collective curve: never falling, exact on power laws, undefined outside the measured range."""

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.comm.curve import Curve, alpha_beta, fit, leave_one_out_errors, with_root
from scalescope.errors import BadInput
from scalescope.hardware.published import published_all_reduce

SIZES = [1 << power for power in range(3, 27)]


def power_law(size: float) -> float:
    return 3e-8 * math.pow(size, 0.7)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 1 << 34), st.floats(1e-9, 1e3)), min_size=1, max_size=40))
def test_a_curve_never_falls_and_stays_within_what_was_measured(points: list[tuple[int, float]]) -> None:
    curve = Curve.through(points)
    sizes, times = [size for size, _ in curve.points], [time_s for _, time_s in curve.points]
    assert sizes == sorted({size for size, _ in points})
    assert all(later >= earlier for earlier, later in itertools.pairwise(times))
    measured = [time_s for _, time_s in points]
    slack = 1 + 1e-9
    assert min(measured) / slack <= times[0] and times[-1] <= max(measured) * slack


def test_what_fell_is_levelled_at_its_geometric_mean() -> None:
    curve = Curve.through([(1, 1.0), (2, 8.0), (4, 2.0), (8, 16.0)])
    assert [size for size, _ in curve.points] == [1, 2, 4, 8]
    assert [time_s for _, time_s in curve.points] == pytest.approx([1.0, 4.0, 4.0, 16.0])
    curve = Curve.through([(1, 4.0), (2, 4.0), (4, 1.0), (8, 9.0)])
    level = 16 ** (1 / 3)
    assert [time_s for _, time_s in curve.points] == pytest.approx([level, level, level, 9.0])


def test_several_times_of_a_size_count_by_their_mean() -> None:
    curve = Curve.through([(8, 1.0), (4, 0.5), (8, 6.0), (8, 2.0)])
    assert dict(curve.points) == pytest.approx({4: 0.5, 8: 3.0})
    assert dict(Curve.through([(0, 5.0), (8, 1.0)]).points) == pytest.approx({8: 1.0})


def test_interpolation_is_exact_on_power_laws() -> None:
    curve = Curve.through([(point_size, power_law(point_size)) for point_size in [*SIZES[::3], SIZES[-1]]])
    for size in (8, 9, 5000, 1 << 26):
        assert curve.time_s(size) == pytest.approx(power_law(size), rel=1e-9)


def test_outside_the_measured_range_the_curve_refuses() -> None:
    curve = Curve.through([(8, 1.0), (64, 2.0)])
    for size in (7.9, 65, 0):
        with pytest.raises(BadInput) as caught:
            curve.time_s(size)
        assert str(caught.value) == f"{size:.0f} bytes are outside the measured range of 8 to 64 bytes"
    with pytest.raises(BadInput, match="outside the measured range of no bytes"):
        Curve.through([]).time_s(8)


def test_coefficients_are_recovered() -> None:
    fitted = fit([(size, 5e-6 + 2e-10 * size) for size in SIZES], alpha_beta)
    assert fitted is not None
    assert fitted.coefficients == pytest.approx((5e-6, 2e-10), rel=1e-6)
    assert fitted.median_error == pytest.approx(0, abs=1e-9)
    points = [(size, 5e-6 + 2e-10 * size + 3e-8 * math.sqrt(size)) for size in SIZES]
    fitted = fit(points, with_root)
    assert fitted is not None
    assert fitted.coefficients == pytest.approx((5e-6, 2e-10, 3e-8), rel=1e-6)
    assert fitted.median_error == pytest.approx(0, abs=1e-9)
    without = fit(points, alpha_beta)
    assert without is not None and without.median_error > 0.01


def test_the_error_of_a_fit_is_relative_and_the_median_over_points() -> None:
    fitted = fit([(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)], lambda size: (1.0,))
    assert fitted is not None
    (level,) = fitted.coefficients
    assert level == pytest.approx((1 + 1 + 1 + 0.5) / (1 + 1 + 1 + 0.25))  # least squares of relative errors
    assert fitted.median_error == pytest.approx(level - 1)


def test_too_little_for_a_fit_gives_none() -> None:
    for points in ([], [(8, 1.0), (16, 2.0)], [(8, 1.0), (8, 1.1), (8, 0.9)]):
        assert fit(points, alpha_beta) is None


def test_each_point_is_predicted_by_the_others() -> None:
    errors = leave_one_out_errors([(size, power_law(size)) for size in SIZES])
    assert len(errors) == len(SIZES) - 2
    assert max(errors) < 1e-9
    (error,) = leave_one_out_errors([(1, 1.0), (2, 1.6), (4, 4.0)])
    assert error == pytest.approx(2 / 1.6 - 1)


def test_published_tables_are_interpolated_within_six_percent() -> None:
    errors: list[float] = []
    for table in published_all_reduce():
        table_errors = leave_one_out_errors([(size, time_s) for size, time_s, _ in table.points])
        assert statistics.median(table_errors) <= 0.06
        errors += table_errors
    assert len(errors) >= 40
