"""Verdict: each run in one sentence, and what its lost speed is lost to."""

from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.waterfall import TERMS, Waterfall
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, notes_of
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.performance import headline
from scalescope.report.render.figure import Figure, Panel, Series
from scalescope.report.scaling.waterfall import waterfall_sections
from scalescope.report.section import Section

_MOST = 3  # runs with a waterfall each
_MOST_LINES = 12  # sentences; the rest is folded
_MOST_BARS = 24  # of those that lose most


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
    drawn = [analyzed for analyzed in report_input.scaling_runs if _waterfalls(analyzed)][:_MOST]
    sections = titled_by_run(
        (analyzed, section) for analyzed in drawn for section in waterfall_sections(analyzed.rows)
    )
    figures = titled_by_run((analyzed, _figure(analyzed, number)) for number, analyzed in enumerate(drawn))
    return Chapter(
        name="verdict",
        title="Summary",
        order=10,
        sections=(Section(lines=lines, details=details), *sections),
        figures=figures,
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
    names = tuple(f"{row.ranks} ranks, batch {row.batch:,}" for row, _ in shown)
    places = tuple(float(row_number) for row_number in range(len(shown)))
    delivered = Series(
        label="delivered", colour=0, x=places, y=tuple(waterfall.delivered for _, waterfall in shown)
    )
    terms = [_term(name, number, shown) for number, name in enumerate(TERMS, start=1)]
    modes = sorted({row.trial.mode for row, _ in shown})
    panel = Panel(
        kind="stacked",
        x_label="speed, in multiples of one rank",
        y_label="",
        series=(delivered, *(term for term in terms if any(value > 0.0 for value in term.y))),
        names=names,
    )
    worst = max(shown, key=lambda pair: pair[1].lost)[1]
    largest = worst.largest
    most = "" if largest is None else f" The largest loss is {largest.name}."
    return Figure(
        name="waterfall" if number == 0 else f"waterfall_{number + 1}",
        title=f"Delivered and lost speed of N ranks ({' and '.join(modes)} scaling)",
        alt=f"Bars of delivered and lost speed for {', '.join(names)}.{most}",
        panels=(panel,),
        command=analyzed.command,
        notes=notes_of([row.configuration for row, _ in shown]),
    )


def _term(name: str, number: int, shown: list[tuple[ScalingRow, Waterfall]]) -> Series:
    values: list[tuple[float, float, float | None, float | None]] = []
    for row_number, (_, waterfall) in enumerate(shown):
        term = waterfall.term(name)
        if term is not None and term.lost is not None:
            values.append((float(row_number), term.lost.value, term.lost.low, term.lost.high))
    return Series(
        label=name,
        colour=number,
        x=tuple(value[0] for value in values),
        y=tuple(value[1] for value in values),
        low=tuple(value[2] for value in values),
        high=tuple(value[3] for value in values),
    )
