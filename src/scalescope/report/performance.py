"""The performance report: a run explained in plain words, for a screen or a file."""

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.configurations import configurations
from scalescope.analysis.memory import memory_groups
from scalescope.analysis.scaling import ScalingRow, scaling_rows
from scalescope.diagnose.diagnosis import diagnose
from scalescope.report import communication
from scalescope.report.findings import evidence_lines, findings_section
from scalescope.report.memory import memory_brief
from scalescope.report.memory_verdict import verdicts
from scalescope.report.profile import profile_sections
from scalescope.report.scaling import verdict
from scalescope.report.section import Section
from scalescope.report.training import training_sentence
from scalescope.report.waterfall import waterfall_sections
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNING, read_json

_NOTHING = "Nothing was measured that could be explained."


def headline(run: Run) -> str:
    """The report's first line: what this run says, in one sentence."""
    found = _said_by_tuning(run) or _said_by_training(run)
    if found is not None:
        return found
    if collectives := collective_rows(run.results):
        return communication.verdict(collectives)
    if (pairs := communication.pairs_verdict(run)) is not None:
        return pairs
    return next(iter(verdicts(memory_groups(run))), _NOTHING)


def _said_by_tuning(run: Run) -> str | None:
    tuning = read_json(run.path / TUNING)
    found = tuning.get("verdict") if isinstance(tuning, dict) else None
    return found if isinstance(found, str) else None


def _said_by_training(run: Run) -> str | None:
    measured = configurations(run.results)
    rows = scaling_rows(measured)
    if _scales(rows):
        return verdict(rows)
    full = [one for one in measured if one.trial.settings["ablation"] == "none"]
    return training_sentence(max(full, key=lambda one: one.samples_per_s.value)) if full else None


def _scales(rows: tuple[ScalingRow, ...]) -> bool:
    """Whether there is more than one number of ranks to compare."""
    return any(not row.is_baseline for row in rows)


def performance_sections(run: Run) -> tuple[Section, ...]:
    """The verdict, where the speed goes, why, and what to do first."""
    measured = configurations(run.results)
    rows = scaling_rows(measured)
    first = Section(lines=(headline(run),))
    if not _scales(rows):
        lines = (
            "There is no scaling to explain: finished training on several numbers of ranks would show it "
            "(scalescope scale).",
        )
        briefs = (*communication.communication_brief(run), *memory_brief(run))
        return (first, *profile_sections(run), *briefs, Section(lines=lines))
    diagnosis = diagnose(run)
    evidence = tuple(
        line for one in diagnosis.findings for line in (f"{one.rule}:", *evidence_lines(one)) if one.evidence
    )
    return (
        first,
        *waterfall_sections(rows),
        *findings_section(diagnosis, every=True),
        *profile_sections(run),
        *((Section(title="Evidence", lines=evidence),) if evidence else ()),
    )


def performance_text(run: Run) -> str:
    """The same as a file of plain text."""
    parts = []
    for section in performance_sections(run):
        parts += [section.title or ""]
        if section.table is not None:
            columns = [section.table.columns, *section.table.rows]
            widths = [max(len(row[place]) for row in columns) for place in range(len(columns[0]))]
            parts += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in columns
            ]
        parts += [*section.lines, *section.details, ""]
    return "\n".join(parts).strip() + "\n"
