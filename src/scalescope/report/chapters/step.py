"""Step: what one rank's step consists of, next to the ideal."""

import itertools
from collections.abc import Sequence

from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training import step_waterfall as step_terms
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, notes_of
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.numbers import counted
from scalescope.report.section import Figure, Panel, Section, Series
from scalescope.report.training.step_waterfall import known_steps, names_of, shown_terms, step_sections

_MOST = 3  # runs, the newest first
_MOST_BARS = 24
_LINE = "The short line across a bar is the ideal: the model's operations at the speed of a matrix product."
X_LABEL = "ms per step"
IDEAL = "ideal"
# Numbers of colour and hatch, the same in every figure; none of them is used for what more ranks add. Compute
# is blue, idle time orange.
STEP_COLOURS = {
    step_terms.FORWARD: 0,
    step_terms.BACKWARD: 24,
    step_terms.BACKWARD_AND_EXCHANGE: 32,
    step_terms.OPTIMIZER: 40,
    step_terms.WHOLE: 64,
    step_terms.WHOLE_AND_EXCHANGE: 72,
    step_terms.OTHER_KERNELS: 48,
    step_terms.COMMUNICATION: 30,
    step_terms.COPIES: 28,
    step_terms.INPUT: 49,
    step_terms.IDLE_INPUT: 49,
    step_terms.IDLE_SYNC: 57,
    step_terms.IDLE_HOST: 25,
    step_terms.IDLE_BETWEEN: 33,
    step_terms.IDLE_UNKNOWN: 41,
    step_terms.REST: 47,
}
_NEXT_COLOURS = (56, 58, 59, 60, 61)  # of events, and of other terms without a number
Bar = dict[str, Estimate]  # seconds by the name of a part


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


def step_panel(waterfalls: Sequence[StepWaterfall], names: Sequence[str]) -> Panel:
    """A bar per configuration, made of the terms of its step."""
    bars = [bar_of(waterfall) for waterfall in waterfalls]
    return bars_panel(bars, names, [waterfall.ideal_s for waterfall in waterfalls], STEP_COLOURS)


def bar_of(waterfall: StepWaterfall) -> Bar:
    """The terms that are shown, by name."""
    return {term.name: term.time_s for term in shown_terms(waterfall)}


def bars_panel(
    bars: Sequence[Bar],
    names: Sequence[str],
    ideals_s: Sequence[float | None],
    colours: dict[str, int],
    *,
    faint: str = "",
    title: str = "",
) -> Panel:
    """Bars of parts in the order of `colours`; a short line across a bar is its ideal."""
    parts = dict.fromkeys((*colours, *(name for bar in bars for name in bar)))
    others = (part for part in parts if part not in colours)
    colours = {**colours, **dict(zip(others, itertools.cycle(_NEXT_COLOURS), strict=False))}
    series = [_series(part, bars, colours, faint=faint) for part in parts]
    known = [(row, ideal_s) for row, ideal_s in enumerate(ideals_s) if ideal_s is not None]
    if known:
        x, y = tuple(float(row) for row, _ in known), tuple(ideal_s * 1e3 for _, ideal_s in known)
        series.append(Series(label=IDEAL, role="ideal", x=x, y=y))
    return Panel(
        kind="stacked",
        x_label=X_LABEL,
        y_label="",
        series=tuple(drawn for drawn in series if drawn.x),
        names=tuple(names),
        title=title,
    )


def _series(part: str, bars: Sequence[Bar], colours: dict[str, int], *, faint: str) -> Series:
    rows = [(row, bar[part]) for row, bar in enumerate(bars) if part in bar]
    return Series(
        label=part,
        colour=colours[part],
        role="not significant" if part == faint else "data",
        x=tuple(float(row) for row, _ in rows),
        y=tuple(time_s.value * 1e3 for _, time_s in rows),
        low=tuple(None if time_s.low is None else time_s.low * 1e3 for _, time_s in rows),
        high=tuple(None if time_s.high is None else time_s.high * 1e3 for _, time_s in rows),
    )
