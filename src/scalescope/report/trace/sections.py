"""Traces in words: where a step went on every rank, what hides behind what, and which exchange does not."""

from typing import Any

from scalescope.analysis.trace.profile import Bucket, Profile, profiles
from scalescope.analysis.trace.rank_trace import IDLE_CAUSES, TracedStep
from scalescope.report.numbers import MISSING, data_size, milliseconds, percent
from scalescope.report.section import Section, Table
from scalescope.results.run import Run

_MOST_KERNELS = 5
_MOST_BUCKETS = 8
_WORTH_NAMING_S = 1e-5
_FAR_APART = 0.1
_LATE = 0.1  # of the transfer: waiting that is worth a name


def profile_sections(run: Run) -> tuple[Section, ...]:
    """One section for each trial that was recorded."""
    return tuple(_section(one) for one in profiles(run))


def _section(one: Profile) -> Section:
    missing = [f"Rank {rank}: {reason}." for rank, reason in one.unread.items()]
    title = f"Trace · {one.trial.label.removeprefix('profile, ')}"
    if not one.ranks:
        return Section(title=title, lines=tuple(missing))
    return Section(
        title=title,
        table=_parts(one),
        lines=(*_slowed(one), *_hidden(one), *_exposed_buckets(one), *_waiting(one), *_idle(one), *missing),
        details=(*_longest(one), *_all_buckets(one), _where(one)),
    )


def _parts(one: Profile) -> Table:
    columns = ("rank", "step ms", "compute", "communication", "hidden", "exposed", "copies", "idle")
    rows = tuple(_row(one, rank) for rank in sorted(one.ranks))
    return Table(columns=columns, rows=rows)


def _row(one: Profile, rank: int) -> tuple[str, ...]:
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
    return (str(rank), *(milliseconds(one.mean(rank, part)) for part in parts))


def _slowed(one: Profile) -> list[str]:
    """Recording costs time: traced steps explain, timed ones count."""
    if one.untraced_step_s is None:
        return []
    return [
        f"Recorded steps take {milliseconds(one.traced_step_s)} ms, steps that nobody watches "
        f"{milliseconds(one.untraced_step_s)} ms: read shares here, times from the timed launches."
    ]


def _hidden(one: Profile) -> list[str]:
    """How much of communication hides behind compute, by the trace and by DDP itself."""
    if one.overlap is None:
        return []
    said = f"{percent(one.overlap)} of communication hides behind compute"
    if one.span_overlap is None or one.ddp_overlap is None or one.disagreement is None:
        return [f"{said}."]
    agree = "" if one.disagreement <= _FAR_APART else ", which is far apart: trust neither without a look"
    lines = [
        f"{said}; from the first bucket's start to the last one's end backward still computes "
        f"{percent(one.span_overlap)} of the time, DDP's own counters say {percent(one.ddp_overlap)}{agree}."
    ]
    if one.span_overlap == 0.0:
        lines.append("No exchange begins before backward has ended: nothing can be hidden.")
    return lines


def _exposed_buckets(one: Profile) -> list[str]:
    exposed = [bucket for bucket in one.buckets if bucket.exposed_s > _WORTH_NAMING_S]
    if not exposed:
        return []
    worst = max(exposed, key=lambda bucket: bucket.exposed_s)
    of_all = len(one.buckets)
    which = "the only exchange" if of_all == 1 else f"exchange {worst.number} of {of_all}"
    size = "" if worst.size_bytes is None else f" ({data_size(worst.size_bytes)})"
    return [
        f"Most exposed is {which}{size}: {milliseconds(worst.exposed_s)} of its "
        f"{milliseconds(worst.time_s)} ms hide behind nothing."
    ]


def _waiting(one: Profile) -> list[str]:
    """Transfer against wait: what exchanges last beyond those of the rank that came last."""
    if one.transfer_s is None:
        return []  # one rank alone was recorded, or exchanges overlap or have a root
    waits = {rank: one.waiting_s(rank) or 0.0 for rank in one.ranks}
    longest, last = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    said = f"Of a step's exchanges {milliseconds(one.transfer_s)} ms are transfer"
    if waits[longest] - waits[last] < _LATE * one.transfer_s:
        return [f"{said}; no rank waits for its peers much longer than the others."]
    return [
        f"{said}; rank {longest} waits {milliseconds(waits[longest])} ms more for a peer, rank {last} the "
        "least: it comes last."
    ]


def _idle(one: Profile) -> list[str]:
    causes = {cause: time_s for cause, time_s in one.idle_s.items() if time_s > _WORTH_NAMING_S}
    words = [f"{milliseconds(time_s)} ms {IDLE_CAUSES[cause]}" for cause, time_s in causes.items()]
    return [f"Idle: {', '.join(words)}."] if words else []


def _longest(one: Profile) -> list[str]:
    """What compute consists of."""
    whole_s = sum(time_s for _, time_s, _ in one.kernels)
    steps = len(next(iter(one.ranks.values())).steps)
    return [
        f"{percent(time_s / whole_s)} of compute: {name[:80]} ({count // steps} a step)"
        for name, time_s, count in one.kernels[:_MOST_KERNELS]
        if whole_s > 0.0
    ]


def _all_buckets(one: Profile) -> list[str]:
    return [_bucket_line(bucket) for bucket in one.buckets[:_MOST_BUCKETS]]


def _bucket_line(bucket: Bucket) -> str:
    size = MISSING if bucket.size_bytes is None else data_size(bucket.size_bytes)
    transfer = "" if bucket.transfer_s is None else f", transfer {milliseconds(bucket.transfer_s)} ms"
    return (
        f"exchange {bucket.number}: {bucket.name[:40]}, {size}, {milliseconds(bucket.time_s)} ms{transfer}, "
        f"exposed {milliseconds(bucket.exposed_s)} ms"
    )


def _where(one: Profile) -> str:
    return f"Traces open in Perfetto (ui.perfetto.dev): {', '.join(one.files.values())}"


def profile_json(run: Run) -> list[dict[str, Any]]:
    """The profiles as results.json holds them."""
    return [_json(one) for one in profiles(run)]


def _json(one: Profile) -> dict[str, Any]:
    return {
        "trial_id": one.trial.trial_id,
        "world_size": one.trial.world_size,
        "strategy": one.trial.settings["strategy"],
        "files": {str(rank): name for rank, name in one.files.items()},
        "unread": {str(rank): reason for rank, reason in one.unread.items()},
        "traced_step_s": one.traced_step_s,
        "untraced_step_s": one.untraced_step_s,
        "overlap": one.overlap,
        "span_overlap": one.span_overlap,
        "ddp_overlap": one.ddp_overlap,
        "transfer_s": one.transfer_s,
        "ranks": [_rank_json(one, rank) for rank in sorted(one.ranks)],
        "buckets": [
            {
                "number": bucket.number,
                "name": bucket.name,
                "size_bytes": bucket.size_bytes,
                "time_s": bucket.time_s,
                "exposed_s": bucket.exposed_s,
                "transfer_s": bucket.transfer_s,
            }
            for bucket in one.buckets
        ],
        "kernels": [
            {"name": name, "time_s": time_s, "count": count}
            for name, time_s, count in (one.kernels[:20] if one.ranks else ())
        ],
    }


def _rank_json(one: Profile, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "waiting_s": one.waiting_s(rank),
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
            for step in one.ranks[rank].steps
        ],
    }
