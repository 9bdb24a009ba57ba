"""Collectives: bandwidth and time by message size, with published results for the same hardware."""

from scalescope.analysis.collectives import CollectiveRow
from scalescope.hardware.published import PublishedCurve, published_all_reduce
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.comm.sections import communication_brief
from scalescope.report.section import Figure, Panel, Series

_MOST = 3  # figures, of the newest runs
_MOST_SERIES = 8
_GB = 1e9


def chapter(report_input: ReportInput) -> Chapter | None:
    analyzed_runs = [analyzed for analyzed in reversed(report_input.analyzed_runs) if analyzed.collectives]
    if not analyzed_runs:
        return None
    return Chapter(
        name="collectives",
        title="Collective bandwidth",
        order=50,
        sections=titled_by_run(
            report_input,
            (
                (analyzed, section)
                for analyzed in analyzed_runs
                for section in communication_brief(analyzed.run)
            ),
        ),
        figures=titled_by_run(
            report_input,
            ((analyzed, _figure(analyzed, number)) for number, analyzed in enumerate(analyzed_runs[:_MOST])),
        ),
    )


def _figure(analyzed: AnalyzedRun, number: int) -> Figure:
    groups: dict[str, list[CollectiveRow]] = {}
    for row in sorted(analyzed.collectives, key=lambda row: row.collective != "all_reduce"):
        if row.size_bytes:
            groups.setdefault(f"{row.collective}, {row.ranks} ranks{row.where}", []).append(row)
    shown = dict(list(groups.items())[:_MOST_SERIES])
    published = [_published(curve) for curve in _of_this_hardware(analyzed)]
    bandwidth = [_series(label, rows, bandwidth=True) for label, rows in shown.items()]
    times = [_series(label, rows, bandwidth=False) for label, rows in shown.items()]
    notes = [f"emulated link: {row.link}" for row in analyzed.collectives if row.link]
    notes += [f"one GPU split into {row.split_gpu} parts" for row in analyzed.collectives if row.split_gpu]
    backends = sorted({str(row.backend) for row in analyzed.collectives})
    dotted = "; dotted lines: published results" if published else ""
    return Figure(
        name="collectives" if number == 0 else f"collectives_{number + 1}",
        title=f"Collective bandwidth and time by message size ({', '.join(backends)}){dotted}",
        alt=f"Lines of bus bandwidth and time by message size for {', '.join(shown)}.",
        panels=(
            Panel(
                kind="lines", x_label="message size", x_in_bytes=True, y_label="mean bus bandwidth, GB/s",
                series=(*bandwidth, *published), x_log=True, y_log=True,
            ),
            Panel(
                kind="lines", x_label="message size", x_in_bytes=True, y_label="mean time, ms",
                series=tuple(times), x_log=True, y_log=True,
            ),
        ),
        command=analyzed.command,
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _series(label: str, rows: list[CollectiveRow], *, bandwidth: bool) -> Series:
    """The faster of in-place and out-of-place at every size; both values are means, as in nccl-tests."""
    best: dict[int, CollectiveRow] = {}
    for row in rows:
        if row.size_bytes not in best or row.time_s < best[row.size_bytes].time_s:
            best[row.size_bytes] = row
    ordered = [best[size] for size in sorted(best)]
    values = [row.busbw_bytes_per_s / _GB if bandwidth else row.time_s * 1e3 for row in ordered]
    return Series(label=label, x=tuple(float(row.size_bytes) for row in ordered), y=tuple(values))


def _of_this_hardware(analyzed: AnalyzedRun) -> list[PublishedCurve]:
    """Published curves for the GPUs of this run."""
    gpus = analyzed.run.environment.get("machine", {}).get("gpus") or []
    used = any(result.trial.on_gpu for result in analyzed.run.results)
    names = [str(gpu.get("name", "")) for gpu in gpus] if used else []
    return [
        curve for curve in published_all_reduce() if any(curve.gpu and curve.gpu in name for name in names)
    ]


def _published(curve: PublishedCurve) -> Series:
    return Series(
        label=f"{curve.system}, {curve.gpus} GPUs",
        x=tuple(float(size) for size, _, _ in curve.points),
        y=tuple(rate / _GB for _, _, rate in curve.points),
        role="reference",
    )
