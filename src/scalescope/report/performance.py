"""The performance report: a run explained in plain words, for a screen or a file."""

import dataclasses

from scalescope.analysis.memory.groups import memory_groups
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.checks.nodes import node_sections
from scalescope.report.comm import sections as communication
from scalescope.report.comm.pairs import pairs_verdict
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

NOTHING = "There are no finished measurements to explain."


def headline(run: Run | AnalyzedRun) -> str | None:
    """The report's first line: the verdict of the run, in one sentence; None where nothing finished."""
    analyzed = _analyzed(run)
    sentence = _tuning_verdict(analyzed.run) or _training_verdict(analyzed)
    if sentence is not None:
        return sentence
    if analyzed.collectives:
        return communication.verdict(analyzed.collectives)
    if (pairs := pairs_verdict(analyzed.run)) is not None:
        return pairs
    return next(iter(verdicts(memory_groups(analyzed.run))), None)


def _analyzed(run: Run | AnalyzedRun) -> AnalyzedRun:
    """A run with what analysis makes of it, each thing computed once."""
    return run if isinstance(run, AnalyzedRun) else AnalyzedRun(run)


def _tuning_verdict(run: Run) -> str | None:
    tuning = read_json(run.path / TUNING)
    sentence = tuning.get("verdict") if isinstance(tuning, dict) else None
    return sentence if isinstance(sentence, str) else None


def _training_verdict(analyzed: AnalyzedRun) -> str | None:
    if analyzed.scales:
        return verdict(analyzed.rows)
    full = [configuration for configuration in analyzed.measured if not configuration.trial.is_ablation]
    return (
        training_sentence(max(full, key=lambda configuration: configuration.samples_per_s.value))
        if full
        else None
    )


def performance_sections(source: Run | AnalyzedRun) -> tuple[Section, ...]:
    """The verdict, where the speed goes, why, and what to do first."""
    analyzed = _analyzed(source)
    run = analyzed.run
    first = Section(lines=(headline(analyzed) or NOTHING,))
    if not analyzed.scales:
        lines = (
            "There is no scaling to explain: that requires finished training on several world sizes "
            "(scalescope scale).",
        )
        briefs = without_lines(first.lines, (*communication.communication_brief(run), *memory_brief(run)))
        findings = findings_section(analyzed.diagnosis, every=True) if analyzed.diagnosis.findings else ()
        nodes = node_sections(run)
        return (first, *profile_sections(run), *briefs, *findings, *nodes, Section(lines=lines))
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
        *node_sections(run),
    )


def without_lines(shown: tuple[str, ...], sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """The sections less the lines that are shown already."""
    return tuple(
        dataclasses.replace(section, lines=tuple(line for line in section.lines if line not in shown))
        for section in sections
    )


def performance_text(run: Run | AnalyzedRun) -> str:
    """The same as a file of plain text."""
    return plain_text(performance_sections(run))
