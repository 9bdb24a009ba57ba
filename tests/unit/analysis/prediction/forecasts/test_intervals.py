"""Intervals cover nine of ten, whatever the errors look like, and say where their width comes from."""

import dataclasses
import math
import random

import pytest

from scalescope.analysis.prediction.forecasts.intervals import (
    LEAST_RESIDUALS,
    LedgerResidual,
    Uncertainty,
    conformal_half_width,
    distance_factor,
    doublings,
    half_widths,
    residuals_of,
)
from scalescope.results.ledger import LedgerEntry, PredictionKind

SAME = PredictionKind(strategy="ddp", backend="gloo", curve="same ranks")
OTHER = PredictionKind(strategy="ddp", backend="gloo", curve="other ranks", is_extrapolated=True)
CERTAIN = Uncertainty()


def residual(step: float, kind: PredictionKind = SAME, distance: float = 0.0) -> LedgerResidual:
    return LedgerResidual(kind=kind, step=step, exposed=step / 2, distance=distance)


@pytest.mark.parametrize(("count", "rank"), [(9, 9), (10, 10), (19, 18), (99, 90)])
def test_the_half_width_is_the_error_of_that_rank(count: int, rank: int) -> None:
    errors = [(-1) ** number * number / 100 for number in range(1, count + 1)]
    assert conformal_half_width(errors[::-1]) == rank / 100
    assert conformal_half_width([0.01] * 8) is None


@pytest.mark.parametrize("count", [9, 40])
def test_nine_of_ten_new_errors_lie_inside(count: int) -> None:
    """Errors with a heavy tail and a bias; the nominal coverage holds on average over calibrations."""
    chance = random.Random(count)

    def draw() -> float:
        return 0.02 + 0.03 * chance.gauss(0, 1) / math.sqrt(chance.gammavariate(2, 0.5))

    covered = 0
    for _ in range(1000):
        width = conformal_half_width([draw() for _ in range(count)])
        covered += width is not None and abs(draw()) <= width
    assert covered / 1000 == pytest.approx(math.ceil(0.9 * (count + 1)) / (count + 1), abs=0.025)


def test_nine_of_the_kind_are_not_pooled_and_fewer_are() -> None:
    near = [residual(0.01) for _ in range(LEAST_RESIDUALS)]
    far = [residual(0.5, OTHER) for _ in range(50)]
    widths = half_widths(SAME, [*far, *near], CERTAIN)
    assert (widths.step, widths.exposed) == (0.01, 0.005)
    assert "9 earlier predictions of this kind" in widths.calibration
    few = [residual(0.01) for _ in range(LEAST_RESIDUALS - 1)]
    others = [residual(0.3, OTHER) for _ in range(12)]
    widths = half_widths(SAME, [*few, *others], CERTAIN)
    assert widths.step == 0.3
    assert "20 earlier predictions over gloo, pooled" in widths.calibration
    assert "only 8 of this kind" in widths.calibration


def test_the_default_is_stated_and_never_narrowed_by_few_errors() -> None:
    same, other = half_widths(SAME, [], CERTAIN), half_widths(OTHER, [], CERTAIN)
    assert (same.step, other.step) == (0.10, 0.30)
    assert same.exposed < other.exposed
    assert "default of 10 %" in same.calibration and "default of 30 %" in other.calibration
    noisy = half_widths(SAME, [], Uncertainty(launches=0.05, network=0.08))
    assert noisy.step == pytest.approx(math.hypot(0.10, 1.645 * math.hypot(0.05, 0.08)))
    default = half_widths(SAME, [], CERTAIN)
    assert half_widths(SAME, [residual(0.001)] * 3, CERTAIN).step == default.step
    assert half_widths(SAME, [residual(-0.4)] * 3, CERTAIN).step == 0.4
    assert "fewer than 9" in half_widths(SAME, [residual(-0.4)] * 3, CERTAIN).calibration
    assert half_widths(SAME, [], CERTAIN).near == pytest.approx(0.03)
    spread = dataclasses.replace(CERTAIN, launches=0.1)
    assert half_widths(SAME, [], spread).near == pytest.approx(0.1645)


def test_distance_widens_and_errors_are_compared_at_no_distance() -> None:
    errors = [residual(0.02 * distance_factor(2.0), OTHER, distance=2.0) for _ in range(20)]
    assert half_widths(OTHER, errors, CERTAIN).step == pytest.approx(0.02)
    far = half_widths(OTHER, errors, Uncertainty(distance=8.0))
    assert far.step == pytest.approx(0.02 * distance_factor(8.0))
    assert far.near == pytest.approx(0.02)
    assert distance_factor(0.0) == 1.0


def test_a_ledger_gives_errors_with_their_distance() -> None:
    assert (doublings(8, 2), doublings(2, 8), doublings(8, 8), doublings(8, None)) == (2.0, 2.0, 0.0, 0.0)
    entry = LedgerEntry(
        kind=OTHER,
        world_size=8,
        curve_ranks=2,
        predicted_s=0.010,
        low_s=0.009,
        high_s=0.011,
        measured_s=0.012,
        predicted_exposed_s=0.002,
        measured_exposed_s=0.005,
    )
    (error,) = residuals_of([entry])
    assert error.step == pytest.approx(math.log(1.2))
    assert error.exposed == pytest.approx(0.25)
    assert error.distance == 2.0


def test_pooled_errors_do_not_hide_an_uncertain_network() -> None:
    errors = [residual(0.01) for _ in range(20)]
    assumed = PredictionKind(strategy="ddp", backend="gloo", curve="assumed")
    certain = half_widths(assumed, errors, CERTAIN)
    unsure = half_widths(assumed, errors, dataclasses.replace(CERTAIN, network=0.2))
    assert certain.step == pytest.approx(0.01)
    assert unsure.step == pytest.approx(math.hypot(0.01, 1.645 * 0.2))


def test_errors_over_another_backend_do_not_count_where_there_are_enough() -> None:
    """Ranks on cores are predicted better than GPUs: their errors would promise too much."""
    gpu = dataclasses.replace(SAME, backend="nccl")
    close = [LedgerResidual(kind=SAME, step=0.01) for _ in range(50)]
    far = [LedgerResidual(kind=gpu, step=0.3) for _ in range(LEAST_RESIDUALS)]
    assert half_widths(gpu, [*close, *far], Uncertainty()).step == pytest.approx(0.3)
    other = dataclasses.replace(gpu, curve="other ranks")
    pooled = half_widths(other, [*close, *far], Uncertainty())
    assert pooled.step == pytest.approx(0.3) and "over nccl" in pooled.calibration
    assert half_widths(SAME, [*close, *far], Uncertainty()).step == pytest.approx(0.01)
