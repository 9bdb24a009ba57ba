"""Intervals: how wide a prediction must be so that nine of ten measurements lie inside.

Split-conformal: of n earlier errors, the ceil(0.9·(n + 1))-th smallest is the half width, which covers 90 %
whatever their distribution (Vovk and others 2005). Errors of predictions far from what was measured are first
divided by a factor for that distance; the width is multiplied by the factor of the new prediction.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scalescope.quantities import counted, percent
from scalescope.results.ledger import LedgerEntry, PredictionKind

COVERAGE = 0.9
LEAST_RESIDUALS = 9  # with fewer, no error of the sample is large enough to cover 90 %
_PER_DOUBLING = 0.25  # wider by this share for each doubling of ranks beyond those of the curve
_NORMAL_90 = 1.645
_DEFAULT_STEP = 0.10  # half width of ln(step time) where nothing is known
_DEFAULT_EXTRAPOLATED = 0.30
_DEFAULT_EXPOSED = 0.05  # of the step
_LEAST_NEAR = 0.03  # by how much compute may be faster than it was measured, at least
_DEFAULT_EXPOSED_EXTRAPOLATED = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerResidual:
    """The error of an earlier prediction."""

    kind: PredictionKind
    step: float  # ln(measured ÷ predicted)
    exposed: float | None = None  # of exposed communication, as a share of the step
    distance: float = 0.0  # doublings of ranks beyond those of the curve
    run: str = ""
    trial_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """What a prediction knows of its own error before any measurement: relative standard deviations."""

    launches: float = 0.0
    network: float = 0.0
    distance: float = 0.0  # doublings of ranks beyond those of the curve


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfWidths:
    """Half widths of ln(step time) and of exposed communication as a share of the step; 90 %."""

    step: float
    exposed: float
    near: float  # of ln(compute), which does not depend on the network
    calibration: str


def residuals_of(entries: Iterable[LedgerEntry]) -> tuple[LedgerResidual, ...]:
    """The errors that a ledger holds."""
    return tuple(
        LedgerResidual(
            kind=entry.kind,
            step=entry.error,
            exposed=entry.exposed_error,
            distance=doublings(entry.world_size, entry.curve_ranks),
            run=entry.run,
            trial_id=entry.trial_id,
        )
        for entry in entries
    )


def doublings(ranks: int, curve_ranks: int | None) -> float:
    """How often ranks double between those of the curve and those of the prediction."""
    return 0.0 if not curve_ranks else abs(math.log2(ranks / curve_ranks))


def distance_factor(distance: float) -> float:
    """By how much errors grow with the distance."""
    return 1.0 + _PER_DOUBLING * distance


def half_widths(
    kind: PredictionKind, residuals: Sequence[LedgerResidual], uncertainty: Uncertainty
) -> HalfWidths:
    """From errors of the same kind; where these are too few from those over the same backend, or from all;
    from stated defaults without any."""
    same_kind = [residual for residual in residuals if residual.kind == kind]
    same_backend = [residual for residual in residuals if residual.kind.backend == kind.backend]
    enough = (known for known in (same_kind, same_backend) if len(known) >= LEAST_RESIDUALS)
    used = next(enough, residuals)
    default = _default(kind, uncertainty)
    factor = distance_factor(uncertainty.distance)
    step, is_enough = _calibrated(used, lambda residual: residual.step, factor, default.step)
    exposed, _ = _calibrated(used, lambda residual: residual.exposed, factor, default.exposed)
    if not used:
        return default
    if used is not same_kind:  # errors over measured networks say nothing about an assumed one
        step = math.hypot(step, _NORMAL_90 * uncertainty.network * factor)
    pooled = f"over {kind.backend}" if used is same_backend else "of all kinds"
    words = _words(kind, len(same_kind), f"{counted(len(used), 'earlier prediction')} {pooled}", is_enough)
    near = min(step / factor, _DEFAULT_STEP)  # compute was measured, however wrong its exchanges may be
    return HalfWidths(step=step, exposed=exposed, near=near, calibration=words)


def conformal_half_width(errors: Sequence[float]) -> float | None:
    """The error that covers a new one with 90 %; None with fewer than nine."""
    rank = math.ceil((len(errors) + 1) * COVERAGE - 1e-9)
    return sorted(map(abs, errors))[rank - 1] if 0 < rank <= len(errors) else None


def _calibrated(
    residuals: Sequence[LedgerResidual],
    error_of: Callable[[LedgerResidual], float | None],
    factor: float,
    default: float,
) -> tuple[float, bool]:
    """The half width, and whether the errors suffice for it; where they do not, at least the default."""
    errors = [
        error / distance_factor(residual.distance)
        for residual in residuals
        if (error := error_of(residual)) is not None
    ]
    width = conformal_half_width(errors)
    if width is not None:
        return width * factor, True
    return max([default, *(abs(error) * factor for error in errors)]), False


def _words(kind: PredictionKind, same_kind: int, pooled: str, is_enough: bool) -> str:
    if not is_enough:
        return (
            f"stated defaults, or the largest earlier error where it is larger: fewer than {LEAST_RESIDUALS} "
            "predictions were checked"
        )
    if same_kind >= LEAST_RESIDUALS:
        return f"errors of {counted(same_kind, 'earlier prediction')} of this kind ({kind.name})"
    return f"errors of {pooled}, pooled: only {same_kind} of this kind ({kind.name})"


def _default(kind: PredictionKind, uncertainty: Uncertainty) -> HalfWidths:
    """Stated widths, with what launches and the network's times vary by."""
    is_assumed = kind.is_extrapolated or kind.curve != "same ranks"
    base = _DEFAULT_EXTRAPOLATED if is_assumed else _DEFAULT_STEP
    exposed = _DEFAULT_EXPOSED_EXTRAPOLATED if is_assumed else _DEFAULT_EXPOSED
    spread = _NORMAL_90 * math.hypot(uncertainty.launches, uncertainty.network)
    factor = distance_factor(uncertainty.distance)
    return HalfWidths(
        step=math.hypot(base, spread) * factor,
        exposed=math.hypot(exposed, _NORMAL_90 * uncertainty.network) * factor,
        near=max(_LEAST_NEAR, _NORMAL_90 * uncertainty.launches),
        calibration=f"a stated default of {percent(base)}, with the spread of launches and of the network's "
        "times: no prediction was checked yet",
    )
