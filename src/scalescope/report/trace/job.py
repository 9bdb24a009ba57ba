"""The traces of a job in words and as data: the step, its breakdown, ranks, process groups, operations."""

import re
import statistics
from typing import Any

from scalescope.analysis.trace.job import GroupTraffic, JobTrace, Traffic
from scalescope.diagnose.finding import Diagnosis, Finding
from scalescope.report.numbers import (
    MISSING,
    counted,
    data_rate,
    data_size,
    flop_rate,
    in_ms,
    milliseconds,
    percent,
    shortened,
)
from scalescope.report.section import Figure, Panel, Section, Series, Table
from scalescope.results.traces.job_trace import SUM_PARTS, RankTrace
from scalescope.results.traces.operations import Operation

PARTS = {
    "compute_s": "compute",
    "exposed_s": "exposed communication",
    "copies_s": "copies",
    "idle_input_s": "waiting for samples",
    "idle_sync_s": "idle after the host waited for it",
    "idle_host_s": "idle, the host launches too late",
    "idle_between_s": "idle between kernels",
    "idle_queued_s": "idle, held back",
}
_PARTS_ON_CPU = {**PARTS, "idle_host_s": "between operations"}
_MOST_RANKS = 16  # on the screen
_MOST_BARS = 64  # in the figure
_MOST_OPERATIONS = 10
_MOST_GROUPS = 8
_LEAST_SHARE = 0.0005
_LEAST_SAID = 0.005  # in a sentence


def headline(job: JobTrace) -> str:
    """What was read, in one line."""
    of = "" if job.world_size is None else f" of {job.world_size}"
    device = f" on {job.first.device}" if job.first.device else ""
    steps = counted(len(job.first.steps), "step")
    return f"{counted(len(job.ranks), 'rank')}{of}{device}, {steps} of {in_ms(job.step_s)}"


def traces_verdict(job: JobTrace) -> str:
    """`A step takes 615 ms: 20 % compute, 27 % exposed communication, 53 % idle.`"""
    shares = {"compute": 0.0, "exposed communication": 0.0, "copies": 0.0, "idle": 0.0}
    for part, time_s in job.breakdown.items():
        word = PARTS[part]
        shares[word if word in shares else "idle"] += time_s / job.step_s
    words = [f"{percent(share)} {word}" for word, share in shares.items() if share >= _LEAST_SAID]
    return f"A step takes {in_ms(job.step_s)}: {', '.join(words)}."


def job_sections(job: JobTrace, diagnosis: Diagnosis) -> tuple[Section, ...]:
    """All that is shown before the findings."""
    return (
        Section(title=headline(job), lines=tuple(_notes(job))),
        _breakdown(job, diagnosis),
        *_ranks(job),
        *_groups(job),
        *_operations(job),
    )


def _notes(job: JobTrace) -> list[str]:
    lines = []
    times = job.step_times_s
    if len(times) > 1:
        spread = statistics.stdev(times) / statistics.fmean(times)
        lines.append(f"Steps take {in_ms(min(times))} to {in_ms(max(times))}, a spread of {percent(spread)}.")
    lines.append(_who_waits(job))
    lines += [f"{file}: not read: {reason}." for file, reason in list(job.unread.items())[:_MOST_RANKS]]
    more = len(job.unread) - _MOST_RANKS
    lines += [f"{counted(more, 'more file')} not read."] if more > 0 else []
    told = {note for trace in job.ranks for note in trace.notes}
    lines += [f"{trace.file}: {note}." for trace in job.ranks[:1] for note in sorted(told)]
    return [line for line in lines if line]


def _who_waits(job: JobTrace) -> str:
    """What can be known about waiting."""
    waits = job.waiting
    if job.communication_s == 0.0:
        return ""
    if waits.known == "none":
        return "One rank does not show which rank waits for which: exchanges include waiting for the others."
    if waits.known == "bounds":
        return "Some ranks are missing: waiting is a lower bound and transfers are an upper bound."
    return ""


def _breakdown(job: JobTrace, diagnosis: Diagnosis) -> Section:
    words = PARTS if job.first.on_gpu else _PARTS_ON_CPU
    rows = []
    for part, time_s in job.breakdown.items():
        if time_s < _LEAST_SHARE * job.step_s:
            continue
        rows.append((words[part], milliseconds(time_s), percent(time_s / job.step_s)))
        waiting_s = job.waiting.waiting_s
        if part == "exposed_s" and waiting_s:
            rows.append(
                ("  of it waiting for ranks", milliseconds(waiting_s), percent(waiting_s / job.step_s))
            )
    rows.append(("step", milliseconds(job.step_s), percent(1.0)))
    lines = []
    if job.overlap is not None:
        total = in_ms(job.communication_s)
        lines.append(f"Communication takes {total} per step; compute hides {percent(job.overlap)} of it.")
    return Section(
        title="Where a step goes",
        table=Table(columns=("part", "ms per step", "share"), rows=tuple(rows), left=frozenset(("part",))),
        lines=tuple(lines),
    )


def _ranks(job: JobTrace) -> tuple[Section, ...]:
    """Each rank, where there are several."""
    if len(job.numbered) < 2:
        return ()
    shown = _most_late(job, _MOST_RANKS)
    columns = ("rank", "step", "compute", "exposed", "waits", "copies", "idle")
    rows = tuple(_rank_row(job, rank) for rank in shown)
    hidden = len(job.numbered) - len(shown)
    lines = (f"{counted(hidden, 'more rank')} in the data (--json).",) if hidden else ()
    return (Section(title="Ranks, ms per step", table=Table(columns=columns, rows=rows), lines=lines),)


def _most_late(job: JobTrace, most: int) -> list[int]:
    """Ranks in their order; where there are too many, those that others wait for longest."""
    by_need = sorted(job.numbered, key=lambda rank: -job.waiting.late_s.get(rank, 0.0))
    return sorted(by_need[:most])


def _rank_row(job: JobTrace, rank: int) -> tuple[str, ...]:
    trace, waits = job.numbered[rank], job.waiting
    idle_s = sum(trace.mean(part) for part in SUM_PARTS if part.startswith("idle"))
    wait_s = waits.by_rank.get(rank)
    waiting = MISSING if wait_s is None else milliseconds(wait_s)
    parts = (milliseconds(trace.mean(part)) for part in ("time_s", "compute_s", "exposed_s"))
    return (str(rank), *parts, waiting, milliseconds(trace.mean("copies_s")), milliseconds(idle_s))


def _groups(job: JobTrace) -> tuple[Section, ...]:
    """Collectives by the dimension or size of their group."""
    rows = [_traffic_row(group, traffic) for group in job.traffic[:_MOST_GROUPS] for traffic in group.traffic]
    if not rows:
        return ()
    columns = (
        "group", "ranks", "collective", "per step", "size", "ms per step", "exposed", "waiting",
        "algbw", "busbw",
    )  # fmt: skip
    table = Table(columns=columns, rows=tuple(rows), left=frozenset(("group", "collective")))
    lines: list[str] = []
    if not any(kind.size_bytes is not None for group in job.traffic for kind in group.traffic):
        lines.append("Sizes are not recorded (NCCL's metadata is missing), so bandwidths are unknown.")
    elif job.waiting.known != "all":
        lines.append("Bandwidths are lower bounds: times include an unknown amount of waiting.")
    return (Section(title="Exchanges", table=table, lines=tuple(lines)),)


def _traffic_row(group: GroupTraffic, traffic: Traffic) -> tuple[str, ...]:
    name = group.name if group.dimension is None else f"{group.name} ({group.dimension} parallel)"
    several = f" ×{group.count}" if group.count > 1 else ""
    return (
        f"{shortened(name, 30)}{several}",
        MISSING if group.size is None else str(group.size),
        traffic.kind.replace("_", "-"),
        f"{traffic.per_step:.0f}",
        MISSING if traffic.size_bytes is None else data_size(traffic.size_bytes),
        milliseconds(traffic.time_s),
        milliseconds(traffic.exposed_s),
        MISSING if traffic.waiting_s is None else milliseconds(traffic.waiting_s),
        MISSING if traffic.algbw is None else data_rate(traffic.algbw),
        MISSING if traffic.busbw is None else data_rate(traffic.busbw),
    )


def _operations(job: JobTrace) -> tuple[Section, ...]:
    """The most expensive of the first rank."""
    trace = job.first
    if not trace.operations:
        return ()
    time = "GPU ms" if trace.on_gpu else "ms"
    columns = ("operation", "shapes", "dtype", "phase", "calls", time, "share", "rate", "where")
    rows = tuple(_operation_row(trace, row, job.step_s) for row in trace.operations[:_MOST_OPERATIONS])
    table = Table(
        columns=columns,
        rows=rows,
        left=frozenset(("operation", "shapes", "phase", "where", "dtype")),
        optional=("rate", "where", "dtype", "shapes"),
    )
    missing = [
        name for name, is_there in (("shapes", trace.has_shapes), ("lines", trace.has_stacks)) if not is_there
    ]
    lines = (f"Not recorded: {' and '.join(missing)}.",) if missing else ()
    return (Section(title="Operations, per step of the first rank", table=table, lines=lines),)


def _operation_row(trace: RankTrace, row: Operation, step_s: float) -> tuple[str, ...]:
    time_s = row.host_s if row.gpu_s is None else row.gpu_s
    rate = row.flops / row.gpu_s if row.flops and row.gpu_s else None
    return (
        short_name(row.op),
        MISSING if not row.shapes else shortened(row.shapes, 40),
        row.dtype or MISSING,
        row.phase or MISSING,
        f"{row.per_step:.0f}",
        milliseconds(time_s),
        percent(time_s / step_s),
        MISSING if rate is None else flop_rate(rate),
        row.line or row.module or MISSING,
    )


def short_name(name: str) -> str:
    """An operation or kernel without its templates: `aten::mm`, `vectorized_elementwise_kernel`."""
    inner = re.match(r"torch::autograd::CppNode<(.*?)(Op)?>", name)
    plain = inner[1] if inner else re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    plain = re.split(r"[<(]", plain, maxsplit=1)[0] or plain
    kernel = plain if plain.startswith(("aten::", "torch::", "c10d::")) else plain.rpartition("::")[2]
    return shortened(kernel or plain, 40)


def job_figure(job: JobTrace) -> Figure:
    """A step of every rank as a stack of its parts."""
    shown = _most_late(job, _MOST_BARS)
    words = PARTS if job.first.on_gpu else _PARTS_ON_CPU
    parts = [part for part in SUM_PARTS if job.breakdown[part] >= _LEAST_SHARE * job.step_s]
    series = tuple(
        Series(
            label=words[part],
            x=tuple(float(index) for index in range(len(shown))),
            y=tuple(job.numbered[rank].mean(part) * 1e3 for rank in shown),
            colour=number,
        )
        for number, part in enumerate(parts)
    )
    panel = Panel(
        kind="stacked",
        x_label="ms per step",
        y_label="",
        series=series,
        names=tuple(f"rank {rank}" for rank in shown),
    )
    return Figure(
        name="trace_step",
        title="Where a step goes, by rank",
        alt=f"Stacked bars: {headline(job)}",
        panels=(panel,),
    )


def job_json(job: JobTrace, diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything as data; what is not known is null."""
    times = job.step_times_s
    waits = job.waiting
    return {
        "kind": "traces",
        "ranks": [_rank_json(job, rank, trace) for rank, trace in job.numbered.items()],
        "unread": dict(job.unread),
        "step": {
            "count": len(times),
            "mean_s": job.step_s,
            "shortest_s": min(times),
            "longest_s": max(times),
            "is_marked": bool(job.first.step_names),
        },
        "breakdown": {**job.breakdown, "waiting_s": waits.waiting_s, "communication_s": job.communication_s},
        "groups": [_group_json(group) for group in job.traffic],
        "waiting": {
            "known": waits.known,
            "waiting_s": waits.waiting_s,
            "late_ranks": list(waits.late_ranks),
            "late_share": waits.late_share,
            "pattern": waits.pattern,
            "by_rank": {
                str(rank): {"waits_s": wait_s, "late_s": waits.late_s[rank]}
                for rank, wait_s in waits.by_rank.items()
            },
        },
        "operations": [_operation_json(row) for row in job.first.operations],
        "findings": [_finding_json(finding) for finding in diagnosis.findings],
        "abstentions": [{"rule": each.rule, "missing": each.missing} for each in diagnosis.abstentions],
    }


def _rank_json(job: JobTrace, rank: int, trace: RankTrace) -> dict[str, Any]:
    return {
        "file": trace.file,
        "rank": rank,
        "world_size": trace.world_size,
        "device": trace.device,
        "on_gpu": trace.on_gpu,
        "steps": [dict(step) for step in trace.steps],
        "span": dict(trace.span),
        "waiting_s": job.waiting.by_rank.get(rank) if job.waiting.known == "all" else None,
        "facts": dict(trace.facts),
        "waits": dict(trace.waits),
        "notes": list(trace.notes),
    }


def _group_json(group: GroupTraffic) -> dict[str, Any]:
    return {
        "name": group.name,
        "size": group.size,
        "ranks": None if group.ranks is None else list(group.ranks),
        "dimension": group.dimension,
        "groups": group.count,
        "collectives": [
            {
                "kind": kind.kind,
                "per_step": kind.per_step,
                "bytes": kind.size_bytes,
                "time_s": kind.time_s,
                "exposed_s": kind.exposed_s,
                "transfer_s": kind.transfer_s,
                "waiting_s": kind.waiting_s,
                "algbw_gbs": None if kind.algbw is None else kind.algbw / 1e9,
                "busbw_gbs": None if kind.busbw is None else kind.busbw / 1e9,
            }
            for kind in group.traffic
        ],
    }


def _operation_json(row: Operation) -> dict[str, Any]:
    names = ("op", "kernel", "shapes", "dtype", "phase", "module", "line", "per_step", "gpu_s", "host_s")
    return {name: getattr(row, name) for name in (*names, "idle_s", "flops")}


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "claim": finding.claim,
        "cost_s": finding.cost_s,
        "share": finding.share,
        "estimated": finding.estimated,
        "ranks": [int(each.value) for each in finding.evidence if each.name == "rank"],
        "evidence": [
            {"name": each.name, "value": each.value, "unit": each.unit} for each in finding.evidence
        ],
        "advice": [advice.label for advice in finding.advice],
    }
