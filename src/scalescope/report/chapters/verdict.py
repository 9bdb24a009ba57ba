"""Verdict: each run in one sentence, and what to do first. The page adds one figure to it."""

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import VERDICT, Chapter, titled_by_run
from scalescope.report.findings import first_finding
from scalescope.report.key_figures import run_figures
from scalescope.report.performance import headline
from scalescope.report.section import Section
from scalescope.report.tuning.code import stored_code

_MOST_LINES = 12  # sentences; the rest is folded


def chapter(report_input: ReportInput) -> Chapter | None:
    """The newest run with scaling comes first."""
    analyzed_runs = [
        *report_input.scaling_runs,
        *(analyzed for analyzed in reversed(report_input.analyzed_runs) if not analyzed.scales),
    ]
    headlines = [(analyzed.name, headline(analyzed)) for analyzed in analyzed_runs]
    sentences = [
        f"{name}: {line}" if len(headlines) > 1 else line for name, line in headlines if line is not None
    ]
    without_result = [name for name, line in headlines if line is None]
    nothing = (f"No result to summarize: {', '.join(without_result)}.",) if without_result else ()
    lines = tuple(sentences[:_MOST_LINES]) if sentences else nothing
    details = (*sentences[_MOST_LINES:], *(nothing if sentences else ()))
    first = titled_by_run(
        report_input, [(analyzed, part) for analyzed in analyzed_runs for part in _to_do(analyzed)][:1]
    )
    sections = (Section(lines=lines, details=details), *first)
    key_figures = run_figures(analyzed_runs[0]) if len(headlines) == 1 else ()
    return Chapter(name=VERDICT, title="Summary", order=10, sections=sections, key_figures=key_figures)


def _to_do(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """What to do first: the settings that tune recommends, or what the first finding says."""
    return stored_code(analyzed.run) or first_finding(analyzed.diagnosis)
