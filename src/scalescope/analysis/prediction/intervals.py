"""The interval around a prediction, from earlier predictions that were measured later."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scalescope.analysis.statistics import t_quantile
from scalescope.quantities import counted, percent
from scalescope.results.ledger import LedgerEntry, PredictionKind

# ---- Intervals: how wide a prediction must be to contain nine of ten measurements


COVERAGE = 0.9
LEAST_GROUPS = 3  # machines and families: fewer say too little about the next one
_PER_DOUBLING = 0.25  # wider by this share for each doubling of ranks beyond those of the curve
_NORMAL_90 = 1.645
# Half widths of ln(step time) where nothing is known. Steps that were predicted from one rank and measured
# collectives were off by 17 % in the mean (16 on a GPU, docs/measurements/2026-11-17-prediction.md): nine of
# ten normal errors with that mean lie within 35 %.
_DEFAULT_FITTED = 0.10
_DEFAULT_FITTED_ELSEWHERE = 0.30  # fitted, with times of collectives that were measured on other ranks
_DEFAULT_UNFITTED = 0.35
_DEFAULT_EXPOSED = 0.05  # of the step
_DEFAULT_EXPOSED_EXTRAPOLATED = 0.15
_LEAST_NEAR = 0.03  # by how much compute may be faster than it was measured, at least
_MOST_NEAR = 0.10  # and at most, however wrong exchanges may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a step was measured, and what: errors of one machine and one family of models belong together."""

    machine: str = ""
    family: str = ""


NOWHERE = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerResidual:
    """The error of an earlier prediction."""

    kind: PredictionKind
    step: float  # ln(measured ÷ predicted)
    exposed: float | None = None  # of exposed communication, as a share of the step
    distance: float = 0.0  # doublings of ranks beyond those of the curve
    origin: Origin = NOWHERE
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


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Earlier errors that say how wide a prediction must be."""

    residuals: Sequence[LedgerResidual]
    is_own: bool  # of the same family on the same machine
    words: str
    is_same_kind: bool = True

    def half_width(self, error_of: Callable[[LedgerResidual], float | None]) -> float | None:
        """At no distance; None where there are too few errors."""
        errors: dict[Origin, list[float]] = {}
        for residual in self.residuals:
            error = error_of(residual)
            if error is not None:
                errors.setdefault(residual.origin, []).append(error / distance_factor(residual.distance))
        if self.is_own:
            return conformal_half_width([error for group in errors.values() for error in group])
        return grouped_half_width(list(errors.values()))


def residuals_of(entries: Iterable[LedgerEntry]) -> tuple[LedgerResidual, ...]:
    """The errors that a ledger holds."""
    return tuple(
        LedgerResidual(
            kind=entry.kind,
            step=entry.error,
            exposed=entry.exposed_error,
            distance=doublings(entry.world_size, entry.curve_ranks),
            origin=Origin(machine=entry.environment_id, family=entry.family),
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
    kind: PredictionKind,
    residuals: Sequence[LedgerResidual],
    uncertainty: Uncertainty,
    origin: Origin = NOWHERE,
) -> HalfWidths:
    """From the nearest evidence that suffices; from stated defaults without any."""
    default = _default(kind, uncertainty)
    factor = distance_factor(uncertainty.distance)
    for evidence in _evidence(kind, residuals, origin):
        step = evidence.half_width(lambda residual: residual.step)
        if step is None:
            continue
        near = min(step, _MOST_NEAR)  # compute was measured, however wrong its exchanges may be
        if kind.curve == "assumed":  # errors over other networks say nothing about this one
            step = math.hypot(step, _NORMAL_90 * uncertainty.network)
        exposed = evidence.half_width(lambda residual: residual.exposed)
        step, exposed = step * factor, default.exposed if exposed is None else exposed * factor
        if not evidence.is_same_kind:
            step, exposed = max(step, default.step), max(exposed, default.exposed)
        return HalfWidths(step=step, exposed=exposed, near=near, calibration=evidence.words)
    return default


def _evidence(
    kind: PredictionKind, residuals: Sequence[LedgerResidual], origin: Origin
) -> Iterable[_Evidence]:
    """The nearest first: this family on this machine, the same kind anywhere, and what resembles it."""
    alike = [residual for residual in residuals if residual.kind.evidence == kind.evidence]
    own = [residual for residual in alike if residual.origin == origin]
    count = counted(len(own), "earlier prediction")
    yield _Evidence(own, True, f"errors of {count} of such jobs on this machine ({kind.name})")
    yield _Evidence(alike, False, f"errors {_elsewhere(alike)} ({kind.name})")
    fitted = [residual for residual in residuals if residual.kind.is_fitted == kind.is_fitted]
    same_curve = [residual for residual in fitted if residual.kind.curve == kind.curve]
    few = f"too few over {kind.backend} ({kind.name})"
    yield _Evidence(same_curve, False, f"errors {_elsewhere(same_curve)}, over any backend: {few}")
    words = f"errors {_elsewhere(fitted)}, over any network, and at least a stated default: {few}"
    yield _Evidence(fitted, False, words, is_same_kind=False)


def _elsewhere(residuals: Sequence[LedgerResidual]) -> str:
    """`of 94 predictions on 7 machines with 6 families of models`."""
    machines = len({residual.origin.machine for residual in residuals})
    families = len({residual.origin.family for residual in residuals})
    predictions = counted(len(residuals), "earlier prediction")
    return f"of {predictions} on {counted(machines, 'machine')}, {families} families of models"


def conformal_half_width(errors: Sequence[float]) -> float | None:
    """The error that covers a new one with 90 %; None with fewer than nine."""
    rank = math.ceil((len(errors) + 1) * COVERAGE - 1e-9)
    return sorted(map(abs, errors))[rank - 1] if 0 < rank <= len(errors) else None


def grouped_half_width(groups: Sequence[Sequence[float]]) -> float | None:
    """What covers an error of a new group with 90 %, each group counting once; None with too few of them."""
    if len(groups) < LEAST_GROUPS:
        return None
    squares = [statistics.fmean(error * error for error in errors) for errors in groups]
    return t_quantile((1.0 + COVERAGE) / 2.0, len(groups)) * math.sqrt(statistics.fmean(squares))


def _default(kind: PredictionKind, uncertainty: Uncertainty) -> HalfWidths:
    """Stated widths, with what launches and the network's times vary by."""
    is_elsewhere = kind.is_extrapolated or kind.curve != "same ranks"
    base = _DEFAULT_FITTED_ELSEWHERE if is_elsewhere else _DEFAULT_FITTED
    base = base if kind.is_fitted else _DEFAULT_UNFITTED
    exposed = _DEFAULT_EXPOSED_EXTRAPOLATED if is_elsewhere else _DEFAULT_EXPOSED
    spread = _NORMAL_90 * math.hypot(uncertainty.launches, uncertainty.network)
    factor = distance_factor(uncertainty.distance)
    return HalfWidths(
        step=math.hypot(base, spread) * factor,
        exposed=math.hypot(exposed, _NORMAL_90 * uncertainty.network) * factor,
        near=max(_LEAST_NEAR, _NORMAL_90 * uncertainty.launches),
        calibration=f"a stated default of {percent(base)}, with the spread of launches and of the network's "
        "times: too few predictions were checked",
    )


# ---- Coverage: how often intervals held, with its exact binomial interval (Clopper and Pearson 1934)


_TAIL = 0.025  # on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportion:
    """A proportion, with its 95 % interval."""

    value: float
    low: float
    high: float


def binomial_interval(successes: int, count: int) -> Proportion:
    """The proportions for which this many successes are not surprising on either side."""
    low = 0.0 if successes == 0 else _where(lambda share: _at_least(successes, count, share) - _TAIL)
    high = 1.0 if successes == count else _where(lambda share: _TAIL - _at_most(successes, count, share))
    return Proportion(value=successes / count, low=low, high=high)


def _where(rising: Callable[[float], float]) -> float:
    """Where a function that rises crosses zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) > 0.0 else (middle, high)
    return (low + high) / 2.0


def _at_least(successes: int, count: int, share: float) -> float:
    return math.fsum(_probability(k, count, share) for k in range(successes, count + 1))


def _at_most(successes: int, count: int, share: float) -> float:
    return math.fsum(_probability(k, count, share) for k in range(successes + 1))


def _probability(successes: int, count: int, share: float) -> float:
    if share in (0.0, 1.0):
        return float(successes == count * share)
    log = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(log + successes * math.log(share) + (count - successes) * math.log1p(-share))
