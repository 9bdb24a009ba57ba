"""Memory: use per rank by category and batch, and the peak."""

import dataclasses

from scalescope.analysis.memory.forecast import MemoryGroup, memory_groups
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.memory.sections import memory_sections
from scalescope.report.section import Figure, Panel, Series

_PARTS = ("parameters", "gradients", "optimizer", "buffers", "activations", "temporary", "inputs", "library")
_MIB = 2.0**20
_MOST = 6  # figures, of the newest runs


def chapter(report_input: ReportInput) -> Chapter | None:
    analyzed_runs = [
        analyzed for analyzed in reversed(report_input.analyzed_runs) if memory_groups(analyzed.run)
    ]
    if not analyzed_runs:
        return None
    figures = titled_by_run(
        report_input,
        (
            (analyzed, figure)
            for analyzed in analyzed_runs
            for group in memory_groups(analyzed.run)
            if (figure := _figure(analyzed, group))
        ),
    )
    named = tuple(_named(figure, number) for number, figure in enumerate(figures[:_MOST]))
    sections = titled_by_run(
        report_input,
        ((analyzed, section) for analyzed in analyzed_runs for section in memory_sections(analyzed.run)),
    )
    return Chapter(name="memory", title="Memory per rank", order=80, sections=sections, figures=named)


def _named(figure: Figure, number: int) -> Figure:
    return figure if number == 0 else dataclasses.replace(figure, name=f"memory_{number + 1}")


def _figure(analyzed: AnalyzedRun, group: MemoryGroup) -> Figure | None:
    rows = [row for row in group.rows if row.measured("peak") is not None]
    if not rows:
        return None
    names = tuple(f"batch {row.batch:,}" for row in rows)
    series = []
    for part in _PARTS:
        known = [(float(row_number), row.measured(part)) for row_number, row in enumerate(rows)]
        sizes = [(row_number, size / _MIB) for row_number, size in known if size]
        if sizes:
            series.append(
                Series(
                    label=part,
                    x=tuple(row_number for row_number, _ in sizes),
                    y=tuple(size for _, size in sizes),
                )
            )
    peaks = Series(
        label="peak",
        x=tuple(float(row.batch) for row in rows),
        y=tuple((row.measured("peak") or 0) / _MIB for row in rows),
    )
    job = group.trial.job_label_without_batch
    return Figure(
        name="memory",
        title=f"Memory per rank: {group.trial.workload} ({job}) on {group.trial.device}",
        alt=f"Bars of memory per rank by category at {', '.join(names)}, and a line of the peak by batch.",
        panels=(
            Panel(kind="stacked", x_label="MiB", y_label="", series=tuple(series), names=names),
            Panel(kind="lines", x_label="batch per rank", y_label="peak memory, MiB", series=(peaks,)),
        ),
        command=analyzed.command,
    )
