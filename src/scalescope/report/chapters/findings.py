"""Findings: what costs speed, on what evidence, and what to do first."""

import dataclasses

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.consistency import consistency_section
from scalescope.report.findings import evidence_section, findings_section
from scalescope.report.section import Section

_MOST = 5  # runs


def chapter(report_input: ReportInput) -> Chapter | None:
    others = [analyzed for analyzed in reversed(report_input.analyzed_runs) if not analyzed.scales][:_MOST]
    diagnosed = [analyzed for analyzed in others if analyzed.diagnosis.findings]
    analyzed_runs = [*report_input.scaling_runs, *diagnosed][:_MOST]
    sections = titled_by_run(
        report_input, ((analyzed, section) for analyzed in analyzed_runs for section in _sections(analyzed))
    )
    if not sections:
        return None
    return Chapter(name="findings", title="Findings and advice", order=20, sections=sections)


def _sections(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    sections = findings_section(analyzed.diagnosis, every=True, loses=analyzed.loses)
    evidence = (
        Section(title=section.title, details=section.lines)
        for section in evidence_section(analyzed.diagnosis)
    )
    untitled = (dataclasses.replace(section, title=None) for section in sections)  # the chapter has one
    return (*consistency_section(analyzed), *untitled, *evidence)
