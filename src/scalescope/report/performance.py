"""The performance report: a run explained in plain words, for a screen or a file."""

from scalescope.analysis.memory.groups import memory_groups
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.comm import sections as communication
from scalescope.report.findings import evidence_lines, findings_section
from scalescope.report.memory.sections import memory_brief
from scalescope.report.memory.verdict import verdicts
from scalescope.report.render.text import plain_text
from scalescope.report.scaling.sections import verdict
from scalescope.report.scaling.waterfall import waterfall_sections
from scalescope.report.section import Section
from scalescope.report.trace.sections import profile_sections
from scalescope.report.training.sections import training_sentence
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNING, read_json

NOTHING = "Nothing was measured that could be explained."


def headline(told: Run | AnalyzedRun) -> str:
    """The report's first line: what this run says, in one sentence."""
    analyzed = _story(told)
    found = _said_by_tuning(analyzed.run) or _said_by_training(analyzed)
    if found is not None:
        return found
    if analyzed.collectives:
        return communication.verdict(analyzed.collectives)
    if (pairs := communication.pairs_verdict(analyzed.run)) is not None:
        return pairs
    return next(iter(verdicts(memory_groups(analyzed.run))), NOTHING)


def _story(run: Run | AnalyzedRun) -> AnalyzedRun:
    """A run with what analysis makes of it, each thing computed once."""
    return run if isinstance(run, AnalyzedRun) else AnalyzedRun(run)


def _said_by_tuning(run: Run) -> str | None:
    tuning = read_json(run.path / TUNING)
    found = tuning.get("verdict") if isinstance(tuning, dict) else None
    return found if isinstance(found, str) else None


def _said_by_training(analyzed: AnalyzedRun) -> str | None:
    if analyzed.scales:
        return verdict(analyzed.rows)
    full = [one for one in analyzed.measured if one.trial.settings["ablation"] == "none"]
    return training_sentence(max(full, key=lambda one: one.samples_per_s.value)) if full else None


def performance_sections(told: Run | AnalyzedRun) -> tuple[Section, ...]:
    """The verdict, where the speed goes, why, and what to do first."""
    analyzed = _story(told)
    run = analyzed.run
    first = Section(lines=(headline(analyzed),))
    if not analyzed.scales:
        lines = (
            "There is no scaling to explain: finished training on several numbers of ranks would show it "
            "(scalescope scale).",
        )
        briefs = (*communication.communication_brief(run), *memory_brief(run))
        found = findings_section(analyzed.diagnosis, every=True) if analyzed.diagnosis.findings else ()
        return (first, *profile_sections(run), *briefs, *found, Section(lines=lines))
    diagnosis = analyzed.diagnosis
    evidence = tuple(
        line
        for finding in diagnosis.findings
        for line in (f"{finding.rule}:", *evidence_lines(finding))
        if finding.evidence
    )
    return (
        first,
        *waterfall_sections(analyzed.rows),
        *findings_section(diagnosis, every=True, loses=analyzed.loses),
        *profile_sections(run),
        *((Section(title="Evidence", lines=evidence),) if evidence else ()),
    )


def performance_text(run: Run | AnalyzedRun) -> str:
    """The same as a file of plain text."""
    return plain_text(performance_sections(run))
