"""Step: what one rank's step consists of, next to the ideal."""

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, notes_of
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.numbers import counted
from scalescope.report.render.figure import Figure
from scalescope.report.section import Section
from scalescope.report.training.step_figure import step_panel
from scalescope.report.training.step_waterfall import known_steps, names_of, step_sections

_MOST = 3  # runs, the newest first
_MOST_BARS = 24
_LINE = "The short line across a bar is the ideal: the model's operations at the speed of a matrix product."


def chapter(report_input: ReportInput) -> Chapter | None:
    runs = [analyzed for analyzed in reversed(report_input.analyzed_runs) if known_steps(analyzed.steps)]
    shown = runs[:_MOST]
    if not shown:
        return None
    return Chapter(
        name="step",
        title="Where the time of a step goes",
        order=15,
        sections=titled_by_run(
            report_input, ((analyzed, section) for analyzed in shown for section in _sections(analyzed))
        ),
        figures=titled_by_run(
            report_input, ((analyzed, _figure(analyzed, number)) for number, analyzed in enumerate(shown))
        ),
    )


def _sections(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """Tables of a few configurations; of ranks that are compared, the waterfall has them."""
    return () if analyzed.scales else step_sections(analyzed.steps)


def _figure(analyzed: AnalyzedRun, number: int) -> Figure:
    known = sorted(known_steps(analyzed.steps), key=lambda facts: (facts.ranks, facts.batch))
    shown = known[:_MOST_BARS]
    waterfalls = [facts.waterfall for facts in shown if facts.waterfall is not None]
    has_ideal = any(waterfall.ideal_s is not None for waterfall in waterfalls)
    left = len(known) - len(shown)
    more = f"; {counted(left, 'configuration')} more" if left else ""
    panel = step_panel(waterfalls, names_of(shown))
    return Figure(
        name="step" if number == 0 else f"step_{number + 1}",
        title=f"What one rank's step consists of{more}",
        alt=f"Bars of the parts of one rank's step for {'; '.join(panel.names)}.",
        panels=(panel,),
        command=analyzed.command,
        notes=(*((_LINE,) if has_ideal else ()), *notes_of([facts.configuration for facts in shown])),
    )
