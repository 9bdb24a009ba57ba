"""Waterfall: what the speed of N ranks is lost to, as bars and as tables."""

from collections.abc import Sequence

from scalescope.analysis.commands import batch_text
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.waterfall import (
    DELIVERED,
    NOT_SEPARATED,
    NOT_SIGNIFICANT,
    TERMS,
    Waterfall,
)
from scalescope.analysis.scaling.whole_step import WholeStep
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, notes_of
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.chapters.step import STEP_COLOURS, Bar, bar_of, bars_panel
from scalescope.report.numbers import counted
from scalescope.report.scaling.waterfall import visible_parts, waterfall_sections, whole_of
from scalescope.report.section import Figure, Panel, Series

_MOST = 3  # runs with a waterfall each
_MOST_BARS = 24  # of those that lose most
_IDEAL = "Lost before the second rank: one rank's parts right of the short line, which is the ideal."
_LEAST_MS = 0.001  # less is the rounding of sums
_SHORTENS = "Left of zero: negative terms, which shorten the step."
_GAINS = "Left of zero: negative terms. What is right of zero minus what is left of it is N."
# Numbers of colour and hatch of the segments of a scaling waterfall, the same in every figure.
SEGMENT_COLOURS = {
    part: number for number, part in enumerate((DELIVERED, *TERMS, NOT_SEPARATED, NOT_SIGNIFICANT))
}
_MORE = "more ranks: "
_COLOURS = STEP_COLOURS | {
    f"{_MORE}{part}": number for part, number in SEGMENT_COLOURS.items() if part != DELIVERED
}
_MOST_PANELS = 2  # side by side


def chapter(report_input: ReportInput) -> Chapter | None:
    """The newest run with scaling comes first."""
    drawn = [analyzed for analyzed in report_input.scaling_runs if _waterfalls(analyzed)][:_MOST]
    if not drawn:
        return None
    sections = titled_by_run(
        report_input,
        (
            (analyzed, section)
            for analyzed in drawn
            for section in waterfall_sections(analyzed.rows, analyzed.steps)
        ),
    )
    figures = titled_by_run(
        report_input, ((analyzed, _figure(analyzed, number)) for number, analyzed in enumerate(drawn))
    )
    return Chapter(
        name="waterfall", title="Where the speed goes", order=14, sections=sections, figures=figures
    )


def _waterfalls(analyzed: AnalyzedRun) -> list[tuple[ScalingRow, Waterfall]]:
    waterfalls = [(row, row.waterfall) for row in analyzed.rows if row.waterfall is not None]
    return [
        (row, waterfall)
        for row, waterfall in waterfalls
        if any(term.lost is not None for term in waterfall.terms)
    ]


def _figure(analyzed: AnalyzedRun, number: int) -> Figure:
    everything = _waterfalls(analyzed)
    shown = sorted(everything, key=lambda pair: -pair[1].lost)[:_MOST_BARS]
    shown.sort(key=everything.index)
    modes = f"{' and '.join(sorted({row.trial.mode for row, _ in shown}))} scaling"
    worst = max(shown, key=lambda pair: pair[1].lost)[1]
    largest = worst.largest
    most = "" if largest is None else f" The largest loss is {largest.name}."
    gains = any(part.begin < 0.0 for _, waterfall in shown for part in waterfall.segments)
    panels, title, notes = _whole_step(analyzed, shown, modes)
    if not panels:
        panels = (waterfall_panel(shown),)
        title = f"Delivered and lost speed of N ranks ({modes})"
        notes = (_GAINS,) if gains else ()
    names = dict.fromkeys(name for panel in panels for name in panel.names)
    return Figure(
        name="waterfall" if number == 0 else f"waterfall_{number + 1}",
        title=title,
        alt=f"Bars of {title[0].lower()}{title[1:]} for {', '.join(names)}.{most}",
        panels=panels,
        command=analyzed.command,
        notes=(*notes, *notes_of([row.configuration for row, _ in shown])),
    )


def _whole_step(
    analyzed: AnalyzedRun, shown: list[tuple[ScalingRow, Waterfall]], modes: str
) -> tuple[tuple[Panel, ...], str, tuple[str, ...]]:
    """Panels, title and notes of the picture that begins with one rank's step; no panels where its parts are
    not known."""
    steps = [step for _, waterfall in shown if (step := whole_of(waterfall, analyzed.steps)) is not None]
    if not steps or len(steps) < len(shown):
        return (), "", ()
    panels, left = whole_panels(steps)
    more = f"; {counted(left, 'batch')} more in the tables" if left else ""
    has_ideal = any(step.ideal_s is not None for step in steps)
    title = f"One rank's step, and what more ranks add to it ({modes}){more}"
    shortens = any(y < -_LEAST_MS for panel in panels for part in panel.series for y in part.y)
    return panels, title, (*((_IDEAL,) if has_ideal else ()), *((_SHORTENS,) if shortens else ()))


def waterfall_panel(shown: list[tuple[ScalingRow, Waterfall]]) -> Panel:
    """A bar per configuration, made of the segments of its waterfall."""
    series = [_series(part, colour, shown) for part, colour in SEGMENT_COLOURS.items()]
    ideal = Series(
        label="N ranks",
        role="ideal",
        x=tuple(float(row_number) for row_number in range(len(shown))),
        y=tuple(float(row.ranks) for row, _ in shown),
    )
    return Panel(
        kind="stacked",
        x_label="speed, in multiples of one rank",
        y_label="",
        series=(*(part for part in series if part.x), ideal),
        names=tuple(_name(row, waterfall) for row, waterfall in shown),
    )


def _name(row: ScalingRow, waterfall: Waterfall) -> str:
    single = waterfall.terms_that_are("no_interval")
    return f"{row.ranks} ranks, {batch_text(row.trial)}{' (one launch, no intervals)' if single else ''}"


def _series(part: str, colour: int, shown: list[tuple[ScalingRow, Waterfall]]) -> Series:
    """One part of every bar that has it, where its segment begins."""
    segments = [
        (float(row_number), segment, waterfall.term(part))
        for row_number, (_, waterfall) in enumerate(shown)
        for segment in waterfall.segments
        if segment.name == part
    ]
    intervals = [None if term is None else term.lost for _, _, term in segments]
    return Series(
        label=part,
        colour=colour,
        role="not significant" if part == NOT_SIGNIFICANT else "data",
        x=tuple(row_number for row_number, _, _ in segments),
        y=tuple(segment.value for _, segment, _ in segments),
        begin=tuple(segment.begin for _, segment, _ in segments),
        low=tuple(None if interval is None else interval.low for interval in intervals),
        high=tuple(None if interval is None else interval.high for interval in intervals),
    )


def whole_panels(steps: Sequence[WholeStep]) -> tuple[tuple[Panel, ...], int]:
    """A panel for each batch, of those that lose most, and how many batches are left out."""
    batches: dict[int, list[WholeStep]] = {}
    for step in steps:
        batches.setdefault(_batch(step), []).append(step)
    worst = sorted(batches, key=lambda batch: -max(step.waterfall.lost for step in batches[batch]))
    shown = sorted(worst[:_MOST_PANELS])
    panels = tuple(_panel(batch, batches[batch], several=len(shown) > 1) for batch in shown)
    return panels, len(batches) - len(shown)


def _batch(step: WholeStep) -> int:
    trial = step.waterfall.trial
    return trial.rank_batch_size if trial.mode == "weak" else trial.samples_per_step


def _bar(step: WholeStep) -> Bar:
    parts = (*visible_parts(step), *step.parts_of("more_ranks"))
    return {part.label: part.time_s for part in parts}


def _panel(batch: int, steps: Sequence[WholeStep], *, several: bool) -> Panel:
    ordered = sorted(steps, key=lambda step: step.waterfall.ranks)
    one_rank = ordered[0].one_rank
    bars: list[Bar] = [
        bar_of(one_rank),
        *(_bar(step) for step in ordered),
    ]
    names = ["1 rank", *(counted(step.waterfall.ranks, "rank") for step in ordered)]
    ideals_s = [one_rank.ideal_s, *(step.ideal_s for step in ordered)]
    title = f"batch {batch:,}" if several else ""
    return bars_panel(bars, names, ideals_s, _COLOURS, faint=f"{_MORE}{NOT_SIGNIFICANT}", title=title)
