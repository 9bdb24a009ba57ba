"""Timeline: one recorded step of every rank, with its buckets, compute and communication."""

from itertools import pairwise

from scalescope.analysis.trace.profile import TraceProfile
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.caveats import context
from scalescope.report.chapter import Chapter, titled_by_run
from scalescope.report.commands import job_name
from scalescope.report.numbers import counted, percent
from scalescope.report.section import Figure, Panel, Series
from scalescope.report.trace.sections import profile_sections

_LANES = ("compute", "communication")
_LANE_OF = {"compute": "compute", "communication": "communication", "copy": "compute"}  # by kind of span
_MOST = 3  # figures, of the newest runs
_MOST_RANKS = 8
_MOST_SPANS = 150  # of a kind; shorter ones are drawn together


def chapter(report_input: ReportInput) -> Chapter | None:
    analyzed_runs = [
        analyzed
        for analyzed in reversed(report_input.analyzed_runs)
        if any(profile.ranks for profile in analyzed.profiles)
    ]
    if not analyzed_runs:
        return None
    drawn = [
        (analyzed, profile) for analyzed in analyzed_runs for profile in analyzed.profiles if profile.ranks
    ][:_MOST]
    return Chapter(
        name="timeline",
        title="Timeline of one step",
        order=70,
        sections=titled_by_run(
            report_input,
            ((analyzed, section) for analyzed in analyzed_runs for section in profile_sections(analyzed.run)),
        ),
        figures=titled_by_run(
            report_input,
            (
                (analyzed, _figure(analyzed, profile, number))
                for number, (analyzed, profile) in enumerate(drawn)
            ),
        ),
    )


def _figure(analyzed: AnalyzedRun, profile: TraceProfile, number: int) -> Figure:
    ranks = sorted(profile.ranks)[:_MOST_RANKS]
    names = tuple(f"rank {rank} {lane}" for rank in ranks for lane in _LANES)
    series = []
    for rank_number, rank in enumerate(ranks):
        step = profile.ranks[rank].steps[-1]
        for kind in _LANE_OF:
            spans = _joined(step.spans.get(kind, []))
            if spans:
                series.append(
                    Series(
                        label=kind,
                        row=rank_number * len(_LANES) + _LANES.index(_LANE_OF[kind]),
                        x=tuple(start * 1e3 for start, _ in spans),
                        y=tuple(end * 1e3 for _, end in spans),
                    )
                )
    hidden = (
        ""
        if profile.overlap is None
        else f" {percent(profile.overlap)} of the communication overlaps with compute."
    )
    return Figure(
        name="timeline" if number == 0 else f"timeline_{number + 1}",
        title=f"One step of {job_name(profile.trial)} ({profile.trial.job_label})",
        alt=f"Bars of compute and communication during one step of {counted(len(ranks), 'rank')}.{hidden}",
        panels=(
            Panel(
                kind="timeline",
                x_label="ms since the start of the step",
                y_label="",
                series=tuple(series),
                names=names,
            ),
        ),
        command=analyzed.command,
        notes=tuple(context(profile.trial)),
    )


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans, joined across the shortest pauses until there are few enough to draw."""
    if len(spans) <= _MOST_SPANS:
        return spans
    pauses = sorted(after[0] - before[1] for before, after in pairwise(spans))
    least = pauses[-_MOST_SPANS]
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start - joined[-1][1] <= least:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
