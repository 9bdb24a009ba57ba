"""The waterfall of one rank's step as a picture: a bar per configuration, with its ideal."""

from collections.abc import Sequence

from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.step_waterfall import (
    BACKWARD,
    COMMUNICATION,
    COPIES,
    FORWARD,
    IDLE_HOST,
    IDLE_INPUT,
    IDLE_SYNC,
    IDLE_UNKNOWN,
    INPUT,
    OPTIMIZER,
    OTHER_KERNELS,
    REST,
    StepWaterfall,
)
from scalescope.report.render.figure import Panel, Series
from scalescope.report.training.step_waterfall import shown_terms

X_LABEL = "ms per step"
IDEAL = "ideal"
# Numbers of colour and hatch, the same in every figure; none of them is used for what more ranks add. Compute
# is blue, idle time red.
STEP_COLOURS = {
    FORWARD: 0,
    BACKWARD: 24,
    OPTIMIZER: 40,
    OTHER_KERNELS: 48,
    COMMUNICATION: 30,
    COPIES: 28,
    INPUT: 49,
    IDLE_INPUT: 49,
    IDLE_SYNC: 57,
    IDLE_HOST: 25,
    IDLE_UNKNOWN: 41,
    REST: 31,
}
_NEXT_COLOUR = 32  # of a term without a number
Bar = dict[str, Estimate]  # seconds by the name of a part


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
        colour=colours.get(part, _NEXT_COLOUR),
        role="not significant" if part == faint else "data",
        x=tuple(float(row) for row, _ in rows),
        y=tuple(time_s.value * 1e3 for _, time_s in rows),
        low=tuple(None if time_s.low is None else time_s.low * 1e3 for _, time_s in rows),
        high=tuple(None if time_s.high is None else time_s.high * 1e3 for _, time_s in rows),
    )
