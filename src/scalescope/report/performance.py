"""The performance report: a run explained in plain words, for a screen or a file."""

from scalescope.analysis.memory.groups import memory_groups
from scalescope.report.analyzed_run import Story
from scalescope.report.comm import sections as communication
from scalescope.report.findings import evidence_lines, findings_section
from scalescope.report.memory.sections import memory_brief
from scalescope.report.memory.verdict import verdicts
from scalescope.report.scaling.sections import verdict
from scalescope.report.scaling.waterfall import waterfall_sections
from scalescope.report.section import Section
from scalescope.report.trace.sections import profile_sections
from scalescope.report.training.sections import training_sentence
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNING, read_json

NOTHING = "Nothing was measured that could be explained."


def headline(told: Run | Story) -> str:
    """The report's first line: what this run says, in one sentence."""
    story = _story(told)
    found = _said_by_tuning(story.run) or _said_by_training(story)
    if found is not None:
        return found
    if story.collectives:
        return communication.verdict(story.collectives)
    if (pairs := communication.pairs_verdict(story.run)) is not None:
        return pairs
    return next(iter(verdicts(memory_groups(story.run))), NOTHING)


def _story(run: Run | Story) -> Story:
    """A run with what analysis makes of it, each thing computed once."""
    return run if isinstance(run, Story) else Story(run)


def _said_by_tuning(run: Run) -> str | None:
    tuning = read_json(run.path / TUNING)
    found = tuning.get("verdict") if isinstance(tuning, dict) else None
    return found if isinstance(found, str) else None


def _said_by_training(story: Story) -> str | None:
    if story.scales:
        return verdict(story.rows)
    full = [one for one in story.measured if one.trial.settings["ablation"] == "none"]
    return training_sentence(max(full, key=lambda one: one.samples_per_s.value)) if full else None


def performance_sections(told: Run | Story) -> tuple[Section, ...]:
    """The verdict, where the speed goes, why, and what to do first."""
    story = _story(told)
    run = story.run
    first = Section(lines=(headline(story),))
    if not story.scales:
        lines = (
            "There is no scaling to explain: finished training on several numbers of ranks would show it "
            "(scalescope scale).",
        )
        briefs = (*communication.communication_brief(run), *memory_brief(run))
        found = findings_section(story.diagnosis, every=True) if story.diagnosis.findings else ()
        return (first, *profile_sections(run), *briefs, *found, Section(lines=lines))
    diagnosis = story.diagnosis
    evidence = tuple(
        line
        for finding in diagnosis.findings
        for line in (f"{finding.rule}:", *evidence_lines(finding))
        if finding.evidence
    )
    return (
        first,
        *waterfall_sections(story.rows),
        *findings_section(diagnosis, every=True, loses=story.loses),
        *profile_sections(run),
        *((Section(title="Evidence", lines=evidence),) if evidence else ()),
    )


def performance_text(run: Run | Story) -> str:
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
