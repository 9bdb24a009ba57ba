"""Traces in words: the parts of a step on every rank, how much is hidden, and the most exposed exchange."""

from pathlib import Path
from typing import Any

from scalescope.analysis.trace.profile import BucketTiming, TraceProfile, profiles
from scalescope.report.numbers import MISSING, data_size, in_ms, milliseconds, percent
from scalescope.report.section import Section, Table
from scalescope.results.run import Run
from scalescope.results.traces.events import TRACES
from scalescope.results.traces.rank_trace import DATA, HOST, QUEUED, TracedStep

_IDLE = {DATA: "waiting for samples", QUEUED: "queued behind another stream"}
_IDLE_GPU = {**_IDLE, HOST: "waiting for the host to launch kernels"}
_IDLE_CPU = {**_IDLE, HOST: "between operations"}
_MOST_KERNELS = 5
_MOST_BUCKETS = 8
_WORTH_NAMING_S = 1e-5
_FAR_APART = 0.1
_LATE = 0.1  # of the transfer: waiting that is worth a name


def profile_sections(run: Run) -> tuple[Section, ...]:
    """One section for each trial that was traced."""
    return tuple(_section(profile, run.path) for profile in profiles(run))


def _section(profile: TraceProfile, folder: Path) -> Section:
    missing = [f"Rank {rank}: {reason}." for rank, reason in profile.unread.items()]
    title = f"Trace · {profile.trial.job_label} · ms per step"
    if not profile.ranks:
        return Section(title=title, lines=tuple(missing))
    return Section(
        title=title,
        table=_parts(profile),
        lines=(
            *_slowed(profile),
            *_hidden(profile),
            *_exposed_buckets(profile),
            *_waiting(profile),
            *_idle(profile),
            *missing,
            f"Traces: {folder / TRACES}; they open in Perfetto (ui.perfetto.dev), TensorBoard and HTA.",
        ),
        details=(*_longest(profile), *_all_buckets(profile), *_files(profile)),
    )


def _parts(profile: TraceProfile) -> Table:
    columns = ("rank", "step", "compute", "communication", "hidden", "exposed", "copies", "idle")
    rows = tuple(_row(profile, rank) for rank in sorted(profile.ranks))
    return Table(columns=columns, rows=rows)


def _row(profile: TraceProfile, rank: int) -> tuple[str, ...]:
    def idle(step: TracedStep) -> float:
        return sum(step.idle_s.values())

    parts = (
        lambda step: step.time_s,
        lambda step: step.compute_s,
        lambda step: step.communication_s,
        lambda step: step.overlap_s,
        lambda step: step.exposed_s,
        lambda step: step.copy_s,
        idle,
    )
    return (str(rank), *(milliseconds(profile.mean(rank, part)) for part in parts))


def _slowed(profile: TraceProfile) -> list[str]:
    """Tracing costs time: traced steps explain, untraced ones are the measurement."""
    if profile.untraced_step_s is None:
        return []
    return [
        f"Traced steps take {in_ms(profile.traced_step_s)}, untraced ones {in_ms(profile.untraced_step_s)}: "
        "use the shares of this table, and the times of untraced launches."
    ]


def _hidden(profile: TraceProfile) -> list[str]:
    """How much of communication is hidden behind compute, by the trace and by DDP itself."""
    if profile.overlap is None:
        return []
    text = f"{percent(profile.overlap)} of communication is hidden behind compute"
    if profile.span_overlap is None or profile.ddp_overlap is None or profile.disagreement is None:
        return [f"{text}."]
    agree = "" if profile.disagreement <= _FAR_APART else "; the two differ widely, so check the trace"
    lines = [
        f"{text}; backward computes during {percent(profile.span_overlap)} of the time from the first "
        f"bucket's start to the last bucket's end (DDP's counters: {percent(profile.ddp_overlap)}{agree})."
    ]
    if profile.span_overlap == 0.0:
        lines.append("No exchange starts before backward ends, so nothing is hidden.")
    return lines


def _exposed_buckets(profile: TraceProfile) -> list[str]:
    exposed = [bucket for bucket in profile.buckets if bucket.exposed_s > _WORTH_NAMING_S]
    if not exposed:
        return []
    worst = max(exposed, key=lambda bucket: bucket.exposed_s)
    of_all = len(profile.buckets)
    which = "the only exchange" if of_all == 1 else f"exchange {worst.number} of {of_all}"
    size = "" if worst.size_bytes is None else f" ({data_size(worst.size_bytes)})"
    part, whole = milliseconds(worst.exposed_s), milliseconds(worst.time_s)
    times = f"{whole} ms, all of it exposed" if part == whole else f"{part} of {whole} ms exposed"
    return [f"Most exposed is {which}{size}: {times}."]


def _waiting(profile: TraceProfile) -> list[str]:
    """Transfer against wait: what exchanges last beyond those of the rank that came last."""
    if profile.transfer_s is None:
        return []  # one rank alone was recorded, or exchanges overlap or have a root
    waits = {rank: profile.waiting_s(rank) or 0.0 for rank in profile.ranks}
    longest, last = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    text = f"Exchanges of a step transfer data for {in_ms(profile.transfer_s)}"
    if waits[longest] - waits[last] < _LATE * profile.transfer_s:
        return [f"{text}; all ranks wait for their peers about equally long."]
    return [
        f"{text}; rank {longest} waits another {in_ms(waits[longest])} for its peers, rank {last} waits the "
        "least, so it is the last to arrive."
    ]


def _idle(profile: TraceProfile) -> list[str]:
    causes = {cause: time_s for cause, time_s in profile.idle_s.items() if time_s > _WORTH_NAMING_S}
    words_of = _IDLE_GPU if profile.trial.on_gpu else _IDLE_CPU
    words = [f"{in_ms(time_s)} {words_of[cause]}" for cause, time_s in causes.items()]
    return [f"Idle: {', '.join(words)}."] if words else []


def _longest(profile: TraceProfile) -> list[str]:
    """What compute consists of."""
    whole_s = sum(time_s for _, time_s, _ in profile.kernels)
    steps = len(next(iter(profile.ranks.values())).steps)
    return [
        f"{percent(time_s / whole_s)} of compute: {name[:80]} ({count // steps} per step)"
        for name, time_s, count in profile.kernels[:_MOST_KERNELS]
        if whole_s > 0.0
    ]


def _all_buckets(profile: TraceProfile) -> list[str]:
    return [_bucket_line(bucket) for bucket in profile.buckets[:_MOST_BUCKETS]]


def _bucket_line(bucket: BucketTiming) -> str:
    size = MISSING if bucket.size_bytes is None else data_size(bucket.size_bytes)
    transfer = "" if bucket.transfer_s is None else f", transfer {in_ms(bucket.transfer_s)}"
    return (
        f"exchange {bucket.number}: {bucket.name[:40]}, {size}, {in_ms(bucket.time_s)}{transfer}, "
        f"exposed {in_ms(bucket.exposed_s)}"
    )


def _files(profile: TraceProfile) -> list[str]:
    return [f"trace of rank {rank}: {name}" for rank, name in sorted(profile.files.items())]


def profile_json(run: Run) -> list[dict[str, Any]]:
    """The profiles as results.json holds them."""
    return [_json(profile) for profile in profiles(run)]


def _json(profile: TraceProfile) -> dict[str, Any]:
    return {
        "trial_id": profile.trial.trial_id,
        "world_size": profile.trial.world_size,
        "strategy": profile.trial.strategy,
        "files": {str(rank): name for rank, name in profile.files.items()},
        "unread": {str(rank): reason for rank, reason in profile.unread.items()},
        "traced_step_s": profile.traced_step_s,
        "untraced_step_s": profile.untraced_step_s,
        "overlap": profile.overlap,
        "span_overlap": profile.span_overlap,
        "ddp_overlap": profile.ddp_overlap,
        "transfer_s": profile.transfer_s,
        "ranks": [_rank_json(profile, rank) for rank in sorted(profile.ranks)],
        "buckets": [
            {
                "number": bucket.number,
                "name": bucket.name,
                "size_bytes": bucket.size_bytes,
                "time_s": bucket.time_s,
                "exposed_s": bucket.exposed_s,
                "transfer_s": bucket.transfer_s,
            }
            for bucket in profile.buckets
        ],
        "kernels": [
            {"name": name, "time_s": time_s, "count": count}
            for name, time_s, count in (profile.kernels[:20] if profile.ranks else ())
        ],
    }


def _rank_json(profile: TraceProfile, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "waiting_s": profile.waiting_s(rank),
        "steps": [
            {
                "time_s": step.time_s,
                "compute_s": step.compute_s,
                "communication_s": step.communication_s,
                "overlap_s": step.overlap_s,
                "exposed_s": step.exposed_s,
                "copy_s": step.copy_s,
                "idle_s": step.idle_s,
            }
            for step in profile.ranks[rank].steps
        ],
    }
