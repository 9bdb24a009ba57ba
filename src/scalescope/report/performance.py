"""The performance report: a run explained in plain words, for a screen or a file."""

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling import scaling_rows
from scalescope.diagnose.diagnosis import diagnose
from scalescope.report.findings import evidence_lines, findings_section
from scalescope.report.scaling import verdict
from scalescope.report.section import Section
from scalescope.report.waterfall import waterfall_sections
from scalescope.results.run import Run


def performance_sections(run: Run) -> tuple[Section, ...]:
    """The verdict, where the speed goes, why, and what to do first."""
    rows = scaling_rows(configurations(run.results))
    if not any(row.ranks > 1 for row in rows):
        lines = ("This run holds no finished training on several ranks, so there is no scaling to explain.",)
        return (Section(lines=lines),)
    diagnosis = diagnose(run)
    evidence = tuple(
        line for one in diagnosis.findings for line in (f"{one.rule}:", *evidence_lines(one)) if one.evidence
    )
    return (
        Section(lines=(verdict(rows),)),
        *waterfall_sections(rows),
        *findings_section(diagnosis, every=True),
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
