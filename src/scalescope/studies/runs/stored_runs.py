"""Runs of one machine that explain and predict each other."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.analysis.prediction.answer import ledger_entries
from scalescope.analysis.prediction.intervals import LedgerResidual, residuals_of
from scalescope.analysis.prediction.jobs import inputs_of
from scalescope.errors import BadInput, StorageError
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.section import Section
from scalescope.results.ledger import LedgerEntry, add_to_ledger, read_ledger
from scalescope.results.run import Run
from scalescope.studies.stored import explain, next_section, present, run_to_explain

if TYPE_CHECKING:
    from scalescope.results.run import Run

# ---- `explain` of several runs, which inform each other, and of what is not a run


def explain_together(paths: Sequence[Path]) -> tuple[Section, ...]:
    """One run in full; of several runs one line each, then a diagnosis of all that one machine measured."""
    from scalescope.results.joined import by_machine

    if len(paths) == 1:
        stored = _checks(paths[0])
        return explain(paths[0]) if stored is None else stored
    runs = [run_to_explain(path) for path in dict.fromkeys(paths)]
    names = {id(run): str(run.path) for run in runs}
    lines = tuple(f"{names[id(run)]}: {present(run).headline}" for run in runs)
    notes = tuple(warning for run in runs for warning in run.warnings)
    groups = by_machine(runs)
    sections = [Section(lines=(*notes, *lines))]
    if len(groups) > 1:
        sections.append(Section(lines=(_not_joined(groups),)))
    for group in groups:
        sections += _joint(group, several=len(groups) > 1)
    return tuple(sections)


def _not_joined(groups: "tuple[tuple[Run, ...], ...]") -> str:
    parts = "; ".join(", ".join(str(run.path) for run in group) for group in groups)
    return (
        "These runs were measured on different machines, so they are explained separately: "
        f"{parts}. scalescope compare shows what differs between two of them."
    )


def _joint(group: "tuple[Run, ...]", *, several: bool) -> list[Section]:
    """The runs of one machine as one: where the time goes, what costs most, and what to do next."""
    from scalescope.report.analyzed_run import AnalyzedRun
    from scalescope.report.comm.sections import communication_explanation
    from scalescope.report.findings import evidence_section
    from scalescope.report.memory.sections import memory_explanation
    from scalescope.report.performance import joint_sections
    from scalescope.results.joined import joined

    run = joined(group)
    analyzed = AnalyzedRun(run)
    title = ", ".join(str(member.path) for member in group)
    heading = [Section(lines=(f"{title}:",))] if several else []
    sections = [
        *joint_sections(analyzed),
        *communication_explanation(analyzed),
        *memory_explanation(run),
        *evidence_section(analyzed.diagnosis),
    ]
    main = next(member for member in group if member.path == run.path)
    # A search goes on from its own launches; any other next step follows from what all runs show together.
    following = present(main if main.record.verb == "tune" else run)
    return [*heading, *sections, next_section(following)]


def _checks(path: Path) -> tuple[Section, ...] | None:
    """What `check --json` printed, as `check` shows it; None for anything else."""
    from scalescope.analysis.checks.host import Check
    from scalescope.report.checks import check_sections
    from scalescope.report.section import ShownCommand
    from scalescope.results.run_commands import CHECK
    from scalescope.results.run_folder import read_json

    facts = read_json(path) if path.is_file() else None
    stored = facts.get("checks") if isinstance(facts, dict) else None
    if not isinstance(stored, list):
        return None
    try:
        checks = tuple(
            Check(
                level=line["level"],
                subject=f"{line['host']}: {line['subject']}" if line.get("host") else line["subject"],
                text=line["text"],
                advice=line["advice"],
            )
            for line in stored
        )
    except (KeyError, TypeError, AttributeError):
        return None
    again = Section(commands=(ShownCommand(label="Next: check this machine again", argv=CHECK),))
    return (*check_sections(checks, [])[:2], again)


# ---- Remembers predictions: what a run would have predicted for its own sizes goes to the ledger


def remember_predictions(of: Run | AnalyzedRun) -> tuple[str, ...]:
    """Append new entries to the ledger; return warnings.

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
