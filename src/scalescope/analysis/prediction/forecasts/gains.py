"""Gains: what moving a setting of a measured trial is predicted to gain."""

import contextlib
from collections.abc import Iterable, Sequence

from scalescope.analysis.prediction.forecasts.contradiction import contradiction_of
from scalescope.analysis.prediction.forecasts.intervals import LedgerResidual, residuals_of
from scalescope.analysis.prediction.forecasts.what_if import what_if
from scalescope.analysis.prediction.inputs import JobInputs, inputs_of
from scalescope.errors import BadInput
from scalescope.results.ledger import LedgerEntry
from scalescope.results.run import Run


def gains_by_trial(run: Run, entries: Iterable[LedgerEntry] = ()) -> dict[str, dict[str, float]]:
    """By trial and setting the gain of the best value; empty where nothing can be predicted, and
    for jobs that contradict their prediction."""
    gains: dict[str, dict[str, float]] = {}
    residuals = residuals_of(entries)
    with contextlib.suppress(BadInput):
        for inputs in inputs_of(run):
            if _is_contradicted(inputs, residuals):
                continue
            for size, trial_id in inputs.job.measured.items():
                with contextlib.suppress(BadInput):
                    for change in what_if(inputs, inputs.job.setup(size, inputs.layout)):
                        of_trial = gains.setdefault(trial_id, {})
                        if change.setting is not None:
                            of_trial.setdefault(change.setting, change.gain)  # the largest comes first
    return gains


def _is_contradicted(inputs: JobInputs, residuals: Sequence[LedgerResidual]) -> bool:
    with contextlib.suppress(BadInput):
        return contradiction_of(inputs.as_measured(), residuals) is not None
    return False
