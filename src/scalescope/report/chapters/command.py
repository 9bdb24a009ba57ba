"""The command: what was run, how its steps and samples were counted, and what was changed in it."""

from scalescope.report.analyzed_run import ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.commands import script_sections

_MOST = 6  # commands, of the newest runs


def chapter(report_input: ReportInput) -> Chapter | None:
    parts = [
        (analyzed, section)
        for analyzed in reversed(report_input.analyzed_runs)
        for section in script_sections(analyzed.run, with_command=True)
    ]
    if not parts:
        return None
    sections = titled_by_run(report_input, parts[:_MOST])
    return Chapter(name="command", title="The training command", order=17, sections=sections)
