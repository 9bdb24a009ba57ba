"""The collective curve: never falling, exact on power laws, undefined outside the measured range."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.analysis.comm.curve import Curve, alpha_beta, fit, leave_one_out_errors, with_root
from scalescope.errors import BadInput
from scalescope.hardware.published import published_all_reduce

SIZES = [1 << power for power in range(3, 27)]


def power_law(size: float) -> float:
    return 3e-8 * math.pow(size, 0.7)


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


def test_a_fall_pulls_down_as_much_as_it_must() -> None:
    curve = Curve.through([(1, 4.0), (2, 4.0), (4, 1.0), (8, 9.0)])
    level = 16 ** (1 / 3)
    assert [time_s for _, time_s in curve.points] == pytest.approx([level, level, level, 9.0])


def test_several_times_of_a_size_count_by_their_mean() -> None:
    curve = Curve.through([(8, 1.0), (4, 0.5), (8, 6.0), (8, 2.0)])
    assert dict(curve.points) == pytest.approx({4: 0.5, 8: 3.0})


def test_nothing_sent_is_no_point() -> None:
    assert dict(Curve.through([(0, 5.0), (8, 1.0)]).points) == pytest.approx({8: 1.0})


@pytest.mark.parametrize("size", [8, 9, 100, 4096, 5000, 1_000_000, 1 << 26])
def test_interpolation_is_exact_on_power_laws(size: int) -> None:
    curve = Curve.through([(point_size, power_law(point_size)) for point_size in [*SIZES[::3], SIZES[-1]]])
    assert curve.time_s(size) == pytest.approx(power_law(size), rel=1e-9)


def test_between_two_points_the_curve_is_straight_in_logarithms() -> None:
    curve = Curve.through([(100, 1.0), (10_000, 4.0)])
    assert curve.time_s(1000) == pytest.approx(2.0)


@pytest.mark.parametrize("size", [7, 7.9, 65, 1e9, 0])
def test_outside_the_measured_range_the_curve_refuses(size: float) -> None:
    curve = Curve.through([(8, 1.0), (64, 2.0)])
    with pytest.raises(BadInput) as caught:
        curve.time_s(size)
    assert str(caught.value) == f"{size:.0f} bytes lie outside the measured range of 8 to 64 bytes"


def test_a_curve_without_points_refuses_everything() -> None:
    with pytest.raises(BadInput, match="outside the measured range of no bytes"):
        Curve.through([]).time_s(8)


def test_alpha_and_beta_are_recovered() -> None:
    fitted = fit([(size, 5e-6 + 2e-10 * size) for size in SIZES], alpha_beta)
    assert fitted is not None
    assert fitted.coefficients == pytest.approx((5e-6, 2e-10), rel=1e-6)
    assert fitted.median_error == pytest.approx(0, abs=1e-9)


def test_the_root_term_is_recovered() -> None:
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


@pytest.mark.parametrize("points", [[], [(8, 1.0)], [(8, 1.0), (16, 2.0)], [(8, 1.0), (8, 1.1), (8, 0.9)]])
def test_too_little_for_a_fit_gives_none(points: list[tuple[int, float]]) -> None:
    assert fit(points, alpha_beta) is None


def test_a_power_law_can_do_without_any_of_its_points() -> None:
    errors = leave_one_out_errors([(size, power_law(size)) for size in SIZES])
    assert len(errors) == len(SIZES) - 2
    assert max(errors) < 1e-9


def test_a_point_off_the_curve_is_an_error_of_its_size() -> None:
    (error,) = leave_one_out_errors([(1, 1.0), (2, 1.6), (4, 4.0)])
    assert error == pytest.approx(2 / 1.6 - 1)


def test_published_tables_are_interpolated_within_six_percent() -> None:
    errors: list[float] = []
    for table in published_all_reduce():
        table_errors = leave_one_out_errors([(size, time_s) for size, time_s, _ in table.points])
        median = statistics.median(table_errors)
        print(f"{table.system}: {len(table_errors)} points left out in turn, median error {median:.1%}")
        assert median <= 0.06
        errors += table_errors
    print(f"all published tables: {len(errors)} points, median error {statistics.median(errors):.1%}")
    assert len(errors) >= 40
    assert statistics.median(errors) <= 0.06
