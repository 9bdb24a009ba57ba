"""The command: what was run, how its steps and samples were counted, and what was changed in it."""

import dataclasses

from scalescope.analysis.commands.script_facts import script_facts
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.commands.script import script_sections
from scalescope.report.section import Section

_MOST = 6  # runs, the newest first


def chapter(report_input: ReportInput) -> Chapter | None:
    parts = [
        (analyzed, section)
        for analyzed in reversed(report_input.analyzed_runs)
        for section in _sections(analyzed)
    ]
    if not parts:
        return None
    sections = titled_by_run(report_input, parts[:_MOST])
    return Chapter(name="command", title="The training command", order=17, sections=sections)


def _sections(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """Of each command what was run, with its placeholders, and how it was measured."""
    commands = [facts.command for facts in script_facts(analyzed.run.results)]
    return tuple(
        dataclasses.replace(section, lines=(f"Command: {command}", *section.lines))
        for command, section in zip(commands, script_sections(analyzed.run), strict=False)
    )
