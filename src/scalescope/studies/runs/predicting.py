"""Remembers predictions: what a run would have predicted for its own sizes goes to the ledger."""

import contextlib
from collections.abc import Sequence

from scalescope.analysis.prediction.forecasts.answer import ledger_entries
from scalescope.analysis.prediction.forecasts.intervals import LedgerResidual, residuals_of
from scalescope.analysis.prediction.inputs import inputs_of
from scalescope.errors import BadInput, StorageError
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.results.ledger import LedgerEntry, add_to_ledger, read_ledger
from scalescope.results.run import Run


def remember_predictions(of: Run | AnalyzedRun) -> tuple[str, ...]:
    """Append to the ledger what it does not have; what must be said about that, and about the ledger.

    Whatever goes wrong here must not cost a study its answer.
    """
    try:
        ledger = read_ledger()
        entries = checked_predictions(analyzed_run(of), residuals_of(ledger.entries))
        if not entries:
            return ()
        add_to_ledger(entries)
    except StorageError as error:
        return (f"Predictions were not added to the ledger: {error}",)
    except Exception as error:
        return (f"Predictions could not be written: {error!r}",)
    return ledger.warnings


def checked_predictions(
    analyzed: AnalyzedRun, residuals: Sequence[LedgerResidual]
) -> tuple[LedgerEntry, ...]:
    """Predictions of the sizes that a run has measured, from what it measured on fewer ranks."""
    run = analyzed.run
    exposed_s = {
        row.trial.trial_id: max(0.0, row.communication_s.value)
        for row in analyzed.rows
        if row.communication_s is not None
    }
    try:
        all_inputs = inputs_of(run)
    except BadInput:  # no profile, or no times
        return ()
    entries: list[LedgerEntry] = []
    for inputs in all_inputs:
        with contextlib.suppress(BadInput):  # a strategy that cannot be predicted, a batch without a profile
            entries += ledger_entries(inputs, exposed_s, residuals)
    return tuple(entries)
