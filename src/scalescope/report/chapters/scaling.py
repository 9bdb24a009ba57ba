"""Scaling: throughput, speedup and efficiency by number of ranks."""

import dataclasses
from collections.abc import Callable

from scalescope.analysis.commands import batch_text
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.statistics import Estimate
from scalescope.experiment.trial import ABLATIONS
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, notes_of
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.commands import job_name, units_of
from scalescope.report.numbers import counted, percent, useful_interval
from scalescope.report.scaling.sections import table_section
from scalescope.report.section import Figure, Panel, Section, Series
from scalescope.report.varied import shown_value, varied_settings

_MOST = 6  # runs, the newest first
_MOST_ROWS = 400
_MOST_SERIES = 10
_MOST_NAMES = 3  # settings in a line's name
_ON_THE_AXES = ("world_size", "batch_size", "global_batch_size", "threads_per_rank", *ABLATIONS)
Value = Callable[[ScalingRow], Estimate]


def chapter(report_input: ReportInput) -> Chapter | None:
    analyzed_runs = report_input.scaling_runs[:_MOST]
    if not analyzed_runs:
        return None
    return Chapter(
        name="scaling",
        title="Scaling",
        order=30,
        sections=titled_by_run(report_input, ((analyzed, _section(analyzed)) for analyzed in analyzed_runs)),
        figures=titled_by_run(
            report_input,
            (
                (analyzed, _figure(analyzed, number, report_input.by))
                for number, analyzed in enumerate(analyzed_runs)
            ),
        ),
    )


def _section(analyzed: AnalyzedRun) -> Section:
    """The scaling table; of very many rows the first ones."""
    whole = table_section(analyzed.rows)
    assert whole.table is not None
    left = len(whole.table.rows) - _MOST_ROWS
    if left <= 0:
        return whole
    table = dataclasses.replace(whole.table, rows=whole.table.rows[:_MOST_ROWS])
    line = f"{left:,} more rows are in tables/comprehensive_summary.csv."
    return dataclasses.replace(
        whole, table=table, lines=(*whole.lines, line), details=whole.details[:_MOST_ROWS]
    )


def _figure(analyzed: AnalyzedRun, number: int, by: str | None) -> Figure:
    groups = grouped(analyzed.rows, by)
    jobs = sorted({f"{job_name(row.trial)}, {row.trial.mode} scaling" for row in analyzed.rows})
    best = max((row for row in analyzed.rows if not row.is_baseline), key=lambda row: row.efficiency.value)
    return Figure(
        name="scaling" if number == 0 else f"scaling_{number + 1}",
        title=f"Throughput and efficiency by number of ranks: {'; '.join(jobs)}",
        alt=f"Lines of throughput and efficiency by number of ranks for {', '.join(groups)}. The "
        f"best efficiency is {percent(best.efficiency.value)} on {best.ranks} ranks.",
        panels=(throughput_panel(groups), efficiency_panel(groups)),
        command=analyzed.command,
        notes=notes_of([row.configuration for row in analyzed.rows]),
    )


def grouped(rows: tuple[ScalingRow, ...], by: str | None = None) -> dict[str, list[ScalingRow]]:
    """Rows of one line each: of one batch, and of one value of the setting that is overlaid."""
    scaled = [row for row in rows if not row.is_baseline]
    varied = [name for name in varied_settings([row.trial for row in scaled]) if name not in _ON_THE_AXES]
    names = list(dict.fromkeys([*([by] if by else []), *varied]))[:_MOST_NAMES]
    groups: dict[str, list[ScalingRow]] = {}
    for row in scaled:
        words = [f"{'' if row.trial.mode == 'weak' else 'global '}{batch_text(row.trial)}"]
        words += [f"{name} {shown_value(row.trial, name)}" for name in names if name in row.trial.settings]
        groups.setdefault(", ".join(words), []).append(row)
    shown = dict(list(groups.items())[:_MOST_SERIES])
    baselines = [row for row in rows if row.is_baseline]
    return {
        label: [*(baseline for baseline in baselines if _starts(baseline, members[0], names)), *members]
        for label, members in shown.items()
    }


def _starts(baseline: ScalingRow, row: ScalingRow, names: list[str]) -> bool:
    """Whether a line starts at this baseline; plain training has no strategy and none of its settings."""
    settings, other = baseline.trial.settings, row.trial.settings
    same = all(settings[name] == other.get(name) for name in names if name in settings and name != "strategy")
    return same and (baseline.ranks, baseline.batch) == (row.baseline_ranks, row.batch)


def throughput_panel(groups: dict[str, list[ScalingRow]]) -> Panel:
    """Speed, with the ideal: N times the rate per rank of the smallest number of ranks."""
    series = [_series(label, rows, lambda row: row.configuration.speed) for label, rows in groups.items()]
    ideals = [_ideal(rows, in_legend=number == 0) for number, rows in enumerate(groups.values())]
    return Panel(
        kind="lines",
        x_label="ranks",
        y_label=f"{units_of(row.configuration for rows in groups.values() for row in rows)} per second",
        series=(*series, *ideals),
        x_log=True,
        y_log=True,
    )


def efficiency_panel(groups: dict[str, list[ScalingRow]]) -> Panel:
    """The share of the ideal that is delivered."""
    series = [_series(label, rows, lambda row: _percent(row.efficiency)) for label, rows in groups.items()]
    ranks = sorted({row.ranks for rows in groups.values() for row in rows})
    ideal = Series(label="ideal", x=tuple(map(float, ranks)), y=(100.0,) * len(ranks), role="ideal")
    return Panel(kind="lines", x_label="ranks", y_label="efficiency, %", series=(*series, ideal), x_log=True)


def speedup_panel(groups: dict[str, list[ScalingRow]]) -> Panel:
    """Speedup over the smallest number of ranks."""
    series = [_series(label, rows, lambda row: row.speedup) for label, rows in groups.items()]
    ranks = sorted({row.ranks for rows in groups.values() for row in rows})
    least = min((row.baseline_ranks for rows in groups.values() for row in rows), default=1)
    ideal = Series(
        label="ideal", x=tuple(map(float, ranks)), y=tuple(rank / least for rank in ranks), role="ideal"
    )
    return Panel(
        kind="lines",
        x_label="ranks",
        y_label=f"speedup over {counted(least, 'rank')}",
        series=(*series, ideal),
        x_log=True,
        y_log=True,
    )


def _series(label: str, rows: list[ScalingRow], value: Value) -> Series:
    ordered = sorted(rows, key=lambda row: row.ranks)
    estimates = [value(row) for row in ordered]
    return Series(
        label=label,
        x=tuple(float(row.ranks) for row in ordered),
        y=tuple(estimate.value for estimate in estimates),
        low=tuple(useful_interval(estimate)[0] for estimate in estimates),
        high=tuple(useful_interval(estimate)[1] for estimate in estimates),
    )


def _ideal(rows: list[ScalingRow], *, in_legend: bool) -> Series:
    ordered = sorted(rows, key=lambda row: row.ranks)
    least = ordered[0]
    rate = least.configuration.speed.value / least.ranks
    return Series(
        label="ideal",
        x=tuple(float(row.ranks) for row in ordered),
        y=tuple(rate * row.ranks for row in ordered),
        role="ideal",
        in_legend=in_legend,
    )


def _percent(estimate: Estimate) -> Estimate:
    low = None if estimate.low is None else estimate.low * 100.0
    high = None if estimate.high is None else estimate.high * 100.0
    return Estimate(estimate.value * 100.0, low, high)
