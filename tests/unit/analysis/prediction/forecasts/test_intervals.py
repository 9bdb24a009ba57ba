"""Intervals cover nine of ten, by the kind of evidence, and say where their width comes from."""

import dataclasses
import math
import random

import pytest
from scipy import stats

from scalescope.analysis.prediction.intervals import (
    LedgerResidual,
    Origin,
    Uncertainty,
    conformal_half_width,
    distance_factor,
    doublings,
    grouped_half_width,
    half_widths,
    residuals_of,
)
from scalescope.results.ledger import LedgerEntry, PredictionKind

LEAST_RESIDUALS = 9  # with fewer, no error of the sample is large enough to cover 90 %

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


def test_nine_errors_of_such_jobs_on_this_machine_count_alone() -> None:
    near = [residual(0.01) for _ in range(LEAST_RESIDUALS)]
    far = [residual(0.5, OTHER) for _ in range(50)]
    widths = half_widths(SAME, [*far, *near], CERTAIN)
    assert (widths.step, widths.exposed) == (0.01, 0.005)
    assert "9 earlier predictions of such jobs on this machine" in widths.calibration


def elsewhere(errors: list[float], kind: PredictionKind = SAME) -> list[LedgerResidual]:
    """One error, many times, for each of several machines."""
    return [
        LedgerResidual(kind=kind, step=error, exposed=error, origin=Origin(machine=f"m{number}", family="f"))
        for number, error in enumerate(errors)
        for _ in range(20)
    ]


def test_other_machines_count_once_each_however_many_errors_they_have() -> None:
    errors = [0.02, -0.04, 0.06]
    widths = half_widths(SAME, elsewhere(errors), CERTAIN)
    rms = math.sqrt(sum(error * error for error in errors) / 3)
    assert widths.step == pytest.approx(stats.t.ppf(0.95, 3) * rms)
    assert "60 earlier predictions on 3 machines" in widths.calibration
    assert half_widths(SAME, elsewhere(errors[:2]), CERTAIN) == half_widths(SAME, [], CERTAIN)


def test_a_new_group_is_covered_although_errors_of_a_group_are_alike() -> None:
    """Errors of a group share their bias; single predictions, pooled, would promise far too much."""
    chance = random.Random(5)

    def group() -> list[float]:
        bias = chance.gauss(0.0, 0.1)
        return [bias + chance.gauss(0.0, 0.01) for _ in range(30)]

    grouped, pooled = 0, 0
    for _ in range(600):
        known, new = [group() for _ in range(4)], group()[0]
        grouped += abs(new) <= (grouped_half_width(known) or 0.0)
        pooled += abs(new) <= (conformal_half_width([error for errors in known for error in errors]) or 0.0)
    assert 0.86 < grouped / 600 < 0.95
    assert pooled / 600 < 0.82


def test_the_default_is_stated_and_depends_on_the_evidence() -> None:
    fitted, elsewhere_fitted = (dataclasses.replace(kind, is_fitted=True) for kind in (SAME, OTHER))
    widths = [half_widths(kind, [], CERTAIN) for kind in (fitted, elsewhere_fitted, SAME, OTHER)]
    assert [width.step for width in widths] == [0.10, 0.30, 0.35, 0.35]
    assert widths[0].exposed < widths[1].exposed
    assert "default of 10 %" in widths[0].calibration and "default of 35 %" in widths[2].calibration
    noisy = half_widths(fitted, [], Uncertainty(launches=0.05, network=0.08))
    assert noisy.step == pytest.approx(math.hypot(0.10, 1.645 * math.hypot(0.05, 0.08)))
    assert half_widths(SAME, [residual(0.001)] * 3, CERTAIN).step == widths[2].step
    assert widths[0].near == pytest.approx(0.03)
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


def test_an_assumed_network_is_as_uncertain_as_it_says() -> None:
    assumed = PredictionKind(strategy="ddp", backend="nccl", curve="assumed")
    errors = [residual(0.01, assumed) for _ in range(20)]
    certain = half_widths(assumed, errors, CERTAIN)
    unsure = half_widths(assumed, errors, dataclasses.replace(CERTAIN, network=0.2))
    assert certain.step == pytest.approx(0.01)
    assert unsure.step == pytest.approx(math.hypot(0.01, 1.645 * 0.2))


def test_errors_of_other_evidence_never_narrow_a_default() -> None:
    """What was fitted says nothing about what was not; another network little about this one."""
    fitted = dataclasses.replace(SAME, is_fitted=True)
    close = elsewhere([0.001] * 5, fitted)
    assert half_widths(fitted, close, CERTAIN).step < 0.01
    assert half_widths(SAME, close, CERTAIN) == half_widths(SAME, [], CERTAIN)
    over_nccl = half_widths(dataclasses.replace(fitted, backend="nccl"), close, CERTAIN)
    assert over_nccl.step < 0.01 and "over any backend" in over_nccl.calibration
    other = dataclasses.replace(OTHER, is_fitted=True)
    assert half_widths(other, close, CERTAIN).step == half_widths(other, [], CERTAIN).step
