"""Contradiction: whether a run has measured something else than what would be predicted for it.

A run's own ranks are the only measurement of its network and its job. Where even a prediction that was fitted
to them misses them, nothing can be predicted for more ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.forecasts.intervals import LedgerResidual
from scalescope.analysis.prediction.inputs import JobInputs
from scalescope.analysis.prediction.prediction import Range
from scalescope.results.run import Run

_LEAST_DIFFERENCE = math.log(1.1)  # less is not called a contradiction, however narrow the interval is


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A measured step outside of the interval that was predicted for it."""

    ranks: int
    measured_s: float
    predicted_s: Range
    had_other_load: bool  # while it, or the one rank that it is predicted from, was measured


def contradiction_of(own: JobInputs | None, residuals: Sequence[LedgerResidual] = ()) -> Contradiction | None:
    """The smallest number of ranks at which a job contradicts what is predicted for it.

    `own` is the job as it was measured (`JobInputs.as_measured`), whatever else is asked for.
    """
    if own is None:
        return None
    for ranks, measured_s in measured_steps(own).items():
        setup = own.job.setup(ranks, own.layout)
        predicted_s = forecast(own, setup, without_own(own, ranks, residuals)).step_s
        if is_contradicted(measured_s, predicted_s):
            return Contradiction(
                ranks=ranks,
                measured_s=measured_s,
                predicted_s=predicted_s,
                had_other_load=_had_other_load(own, ranks),
            )
    return None


def is_contradicted(measured_s: float, predicted_s: Range) -> bool:
    """Outside of the interval, and by more than is worth a word."""
    is_outside = not predicted_s.low <= measured_s <= predicted_s.high
    return is_outside and abs(math.log(measured_s / predicted_s.value)) > _LEAST_DIFFERENCE


def measured_steps(inputs: JobInputs, *, disturbed: bool = True) -> dict[int, float]:
    """Measured step times of the job by number of ranks, beyond one; or only those that nothing disturbed."""
    known = _configurations(inputs.run)
    return {
        size: known[trial_id].step_time_s.value
        for size, trial_id in sorted(inputs.job.measured.items())
        if trial_id in known and (disturbed or not known[trial_id].is_disturbed)
    }


def without_own(inputs: JobInputs, size: int, residuals: Sequence[LedgerResidual]) -> list[LedgerResidual]:
    """The errors of other measurements: that of the same one would make the interval look right."""
    own_trial, began = inputs.job.measured.get(size), run_began(inputs.run)
    return [residual for residual in residuals if (residual.trial_id, residual.run) != (own_trial, began)]


def run_began(run: Run) -> str:
    """When a run began, which names it wherever its folder lies."""
    return run.record.started_at or min((result.started_at for result in run.results), default="")


def _had_other_load(inputs: JobInputs, ranks: int) -> bool:
    known = _configurations(inputs.run)
    trials = (inputs.job.measured[ranks], *(profile.trial.trial_id for profile in inputs.job.profiles))
    return any(known[trial_id].had_other_load for trial_id in trials if trial_id in known)


def _configurations(run: Run) -> dict[str, Configuration]:
    return {member.trial.trial_id: member for member in configurations(run.results)}
