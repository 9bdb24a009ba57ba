"""What the traces of a job show: rules over steps, exchanges and operations, each with what it costs.

A cost is part of a term of the breakdown, so no finding costs more than the table shows. What a trace cannot
tell (shapes, stacks, other ranks) makes a rule abstain.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scalescope.analysis.trace.job import CHANGING, JobTrace, Meeting, Traffic
from scalescope.diagnose.finding import Abstention, Advice, Diagnosis, Evidence, Finding
from scalescope.hardware.published import typical_busbw
from scalescope.quantities import counted, data_rate, data_size, flop_rate, in_ms, numbered_ranks, percent
from scalescope.results.traces.job_trace import RankTrace
from scalescope.results.traces.operations import Loop, Operation

_LEAST = 0.03  # of a step: smaller losses are not worth a finding
_MUCH = 0.05  # for what every healthy job has a little of
_MUCH_ON_CPU = 0.25  # the profiler itself slows the host, and there every operation is the host's
_UNEVEN = 1.2  # the most of a rank ÷ the mean
_MANY = 50  # collectives per step
_SMALL_BYTES = 1 << 20
_SMALL_S = 250e-6
_OTHER_WORK = 0.02  # difference in the number of kernels
_STANDS_OUT = 3.0  # times the median deviation of steps
_LONGER = 1.15  # times the median step: something happened in it
_SLOW = 0.5  # of the rate of comparable products
_VERY_SLOW = 0.25  # where its shapes are not to blame
_LONG_PRODUCT_S = 50e-6  # shorter ones are limited by their start
_COMPARABLE = 4.0  # times the operations of a product
_MOST_HELD_BACK = 0.2  # of a step: such a trace does not tell why the GPU was idle
_MUCH_OF_PAUSE = 0.3  # of the longest step's excess: what causes a pause takes at least that
_MOST_IN_PAUSES = 0.6  # of all waiting
_LEAST_CAUSE = 0.2  # of what others wait: a smaller difference is not why a rank is late
_ALIGNED = {"bf16": 8, "fp16": 8, "fp32": 4}  # elements: rows of matrix units
_SHOWN = 3

Result = Finding | Abstention
Rule = Callable[["TraceFacts"], Iterator[Result]]


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """A job's traces, and ways to make findings about them."""

    job: JobTrace

    @property
    def step_s(self) -> float:
        return self.job.step_s

    def is_worth(self, cost_s: float, least: float = _LEAST) -> bool:
        return cost_s >= least * self.step_s

    def finding(
        self,
        rule: str,
        claim: str,
        cost_s: float,
        *advice: str,
        evidence: Sequence[Evidence] = (),
        estimated: bool = False,
        ranks: Sequence[int] = (),
    ) -> Finding:
        """A finding whose cost is that of a step."""
        named = tuple(Evidence(name="rank", value=float(rank), source="traces") for rank in ranks)
        return Finding(
            rule=rule,
            claim=claim,
            lost=0.0,
            share=min(1.0, cost_s / self.step_s),
            cost_s=cost_s,
            estimated=estimated,
            evidence=(*named, *evidence),
            advice=tuple(Advice(label=label) for label in advice),
            about=numbered_ranks(ranks) if ranks else "",
        )

    def typical(self, *parts: str) -> float:
        """Parts of a step, the median over ranks: what one rank alone has is a finding of its own."""
        return statistics.median(sum(trace.mean(part) for part in parts) for trace in self.job.ranks)


def diagnose(job: JobTrace) -> Diagnosis:
    """All findings, the most expensive first, and what could not be decided."""
    facts = TraceFacts(job=job)
    results = [result for rule in RULES for result in rule(facts)]
    findings = [result for result in results if isinstance(result, Finding)]
    findings.sort(key=lambda finding: -(finding.cost_s or 0.0))
    abstentions = [result for result in results if isinstance(result, Abstention)]
    return Diagnosis(findings=tuple(findings), abstentions=tuple(abstentions))


def _ms(name: str, seconds: float) -> Evidence:
    return Evidence(name=name, value=seconds, unit="s per step", source="traces")


# ---- Ranks that wait for each other


def waiting(facts: TraceFacts) -> Iterator[Result]:
    job, waits = facts.job, facts.job.waiting
    if waits.known == "none" or waits.waiting_s is None:
        if job.communication_s > 0.0:
            yield Abstention(
                rule="waiting",
                missing="the traces of the other ranks: an exchange ends when all ranks have arrived, so "
                "the trace of one rank does not separate waiting from transfer",
            )
        return
    if not facts.is_worth(waits.waiting_s) or _is_of_pauses(job):
        return
    read = counted(len(job.numbered), "rank")
    partly = "" if waits.known == "all" else f" Only {read} were read, so this is a lower bound."
    evidence = [_ms("waiting for other ranks", waits.waiting_s)]
    if waits.pattern == CHANGING or not waits.late_ranks or waits.delay_s is None:
        yield facts.finding(
            "changing late rank",
            f"Ranks wait {in_ms(waits.waiting_s)} per step for each other, and no rank or node is late in "
            f"every step.{partly}",
            waits.waiting_s,
            "give all ranks equal work in each step: batches of equal length, sorted or packed samples",
            evidence=evidence,
        )
        return
    if _unevenness(job).rank in waits.late_ranks:
        return  # it has more to work on: the finding about that counts the waiting
    rule, cause, advice = _cause_of_delay(job, waits.late_ranks, waits.delay_s)
    yield facts.finding(
        rule,
        f"Other ranks wait {in_ms(waits.delay_s)} per step longer than {numbered_ranks(waits.late_ranks)} "
        f"({in_ms(waits.waiting_s)} on average over all ranks): {cause}.{partly}",
        waits.delay_s,
        advice,
        *_advice_on_node(waits.late_ranks),
        evidence=evidence,
        ranks=waits.late_ranks,
    )


def _advice_on_node(ranks: Sequence[int]) -> Iterator[str]:
    """Launchers number the ranks of a node one after the other."""
    count = len(ranks)
    if count in (2, 4, 8, 16) and ranks[0] % count == 0 and ranks[-1] - ranks[0] == count - 1:
        yield f"{numbered_ranks(ranks)} may be one node: check its load, its clocks and its storage"


def _is_of_pauses(job: JobTrace) -> bool:
    """Whether ranks wait mostly in single steps, in which one rank did something else."""
    numbers = [number for number, _ in _long_steps(job)]
    waits = job.waiting.by_step
    inside_s = sum(waits[number] for number in numbers if number < len(waits))
    return bool(numbers) and inside_s > _MOST_IN_PAUSES * sum(waits)


def _cause_of_delay(job: JobTrace, ranks: Sequence[int], delay_s: float) -> tuple[str, str, str]:
    """What late ranks have more of than the others: (rule, in words, advice)."""
    late = [job.numbered[rank] for rank in ranks]
    others = [trace for rank, trace in job.numbered.items() if rank not in ranks]
    each, named = ("it", f"rank {ranks[0]}") if len(ranks) == 1 else ("each", numbered_ranks(ranks))

    def more(*parts: str) -> float:
        own, usual = (
            statistics.median(sum(trace.mean(part) for part in parts) for trace in traces)
            for traces in (late, others)
        )
        return own - usual

    causes = {
        "compute": more("compute_s"),
        "input": more("idle_input_s"),
        "host": more("idle_host_s", "idle_sync_s"),
        "copies": more("copies_s"),
        "held back": more("idle_queued_s"),
    }
    cause = max(causes, key=causes.__getitem__)
    extra_s = causes[cause]
    if extra_s < _LEAST_CAUSE * delay_s:
        return "late rank", "its trace does not show why", f"check the node of {named}"
    if cause == "compute" and job.first.on_gpu:
        return _cause_of_compute(late, others, extra_s, each, named)
    longer = f"{in_ms(extra_s)} longer"
    rule = "slower host than other ranks" if cause == "host" else "late rank"
    words, advice = {
        "compute": (
            f"{each} computes {longer}",
            f"compare the work and the cores of {named} with the others'",
        ),
        "input": (
            f"{each} waits {longer} for samples",
            f"check the storage and the loader processes of {named}",
        ),
        "host": (
            f"{each} has a host that launches work too late, {in_ms(extra_s)} per step",
            f"check what else runs on the cores of {named}, and code that only runs there",
        ),
        "copies": (
            f"{each} copies {longer}",
            f"check the PCIe link of {named} (nvidia-smi -q), and what only it copies",
        ),
        "held back": (
            f"{each} has work that was launched and did not run, {longer}",
            f"look at what the streams of {named} wait for, in Perfetto (ui.perfetto.dev)",
        ),
    }[cause]
    return rule, words, advice


def _cause_of_compute(
    late: Sequence[RankTrace], others: Sequence[RankTrace], extra_s: float, each: str, named: str
) -> tuple[str, str, str]:
    """More kernels, or slower ones."""
    kernels, usual = (
        statistics.median(trace.facts["kernels_per_step"] for trace in traces) for traces in (late, others)
    )
    if abs(kernels - usual) >= _OTHER_WORK * max(usual, 1.0):
        return (
            "late rank",
            f"{each} has {kernels:.0f} kernels per step, the others {usual:.0f}, which take {in_ms(extra_s)} "
            "longer",
            f"give {named} as much work as the others",
        )
    return (
        "slower kernels than other ranks",
        f"the kernels of {named} take {in_ms(extra_s)} longer, though as many run",
        f"compare clocks, temperature and power of the GPU of {named} with the others (nvidia-smi -q)",
    )


# ---- Exchanges


@dataclass(frozen=True, kw_only=True)
class _Unevenness:
    """How unevenly ranks share all-to-all exchanges."""

    most: float = 1.0  # of a rank ÷ the mean
    rank: int | None = None  # that has the most, where it is uneven
    lost_s: float = 0.0  # per step, of the exchanges themselves


def _unevenness(job: JobTrace) -> _Unevenness:
    meetings = [meeting for meeting in job.meetings if meeting.kind == "all_to_all"]
    if not meetings:
        return _uneven_on_one_rank(job)
    steps = min(len(trace.steps) for trace in job.ranks)
    lost_s, most = 0.0, 1.0
    heavy: Counter[int] = Counter()
    for meeting in meetings:
        loads = _loads(meeting)
        uneven = _uneven(list(loads.values()))
        most = max(most, uneven)
        if uneven >= _UNEVEN:
            heavy[max(loads, key=loads.__getitem__)] += 1
            lost_s += statistics.fmean(meeting.exposed_s.values()) * (1.0 - 1.0 / uneven) / steps
    rank = heavy.most_common(1)[0][0] if heavy else None
    if rank is not None and heavy[rank] < 0.5 * sum(heavy.values()):
        rank = None
    return _Unevenness(most=most, rank=rank, lost_s=lost_s)


def _loads(meeting: Meeting) -> dict[int, float]:
    """What each rank receives where all tell what they send; else what each sends."""
    ranks = sorted(meeting.times_s)
    splits = [meeting.splits[rank] for rank in ranks]
    received = _received(splits)
    sent = {rank: float(sum(split)) for rank, split in zip(ranks, splits, strict=True) if split}
    if len(sent) < len(ranks):
        sent = {rank: size for rank, size in meeting.size_bytes.items() if size}
    if received is not None and _uneven(received) > _uneven(list(sent.values())):
        return dict(zip(ranks, received, strict=True))
    return sent


def uneven_all_to_all(facts: TraceFacts) -> Iterator[Result]:
    job, found = facts.job, _unevenness(facts.job)
    waits = job.waiting
    caused_s = waits.late_s[found.rank] if found.rank is not None and found.rank in waits.late_ranks else 0.0
    cost_s = min(found.lost_s + caused_s, job.breakdown["exposed_s"])  # lost time includes waiting for others
    if found.most < _UNEVEN or not facts.is_worth(cost_s):
        return
    who = "one rank" if found.rank is None else f"rank {found.rank}"
    waiting = f"; others wait {in_ms(caused_s)} per step for it" if caused_s else ""
    yield facts.finding(
        "uneven all-to-all",
        f"All-to-all exchanges are uneven: {who} has {found.most:.1f} times the mean{waiting}. Together "
        f"about {in_ms(cost_s)} per step.",
        cost_s,
        "balance what ranks exchange: expert capacity or an auxiliary loss, or tables sharded by traffic",
        evidence=(Evidence(name="most ÷ mean", value=found.most, source="traces"),),
        estimated=True,
        ranks=() if found.rank is None else (found.rank,),
    )


def _received(splits: Sequence[tuple[int, ...] | None]) -> list[float] | None:
    """What each rank receives, where all ranks tell what they send."""
    if any(split is None or len(split) != len(splits) for split in splits) or not splits:
        return None
    return [float(sum(split[rank] for split in splits if split)) for rank in range(len(splits))]


def _uneven(loads: Sequence[float]) -> float:
    mean = statistics.fmean(loads) if loads else 0.0
    return max(loads) / mean if mean > 0.0 else 1.0


def _uneven_on_one_rank(job: JobTrace) -> _Unevenness:
    """With one rank, what it sends to each other one."""
    lost_s, most = 0.0, 1.0
    trace = job.first
    for exchange in trace.exchanges:
        if exchange.kind == "all_to_all" and exchange.splits and len(exchange.splits) > 1:
            uneven = _uneven([float(split) for split in exchange.splits])
            most = max(most, uneven)
            if uneven >= _UNEVEN:
                lost_s += exchange.exposed_s * (1.0 - 1.0 / uneven) / len(trace.steps)
    return _Unevenness(most=most, lost_s=lost_s)


def _small(traffic: Traffic) -> bool:
    if traffic.per_step < _MANY:
        return False
    if traffic.size_bytes is not None:
        return traffic.size_bytes <= _SMALL_BYTES
    return (traffic.transfer_s or traffic.time_s) / traffic.per_step <= _SMALL_S


def _moving_s(traffic: Traffic) -> float:
    """Exposed, without waiting where that is known."""
    return max(0.0, traffic.exposed_s - (traffic.waiting_s or 0.0))


def small_collectives(facts: TraceFacts) -> Iterator[Result]:
    small = [kind for group in facts.job.traffic for kind in group.traffic if _small(kind)]
    cost_s = sum(map(_moving_s, small))
    if not small or not facts.is_worth(cost_s):
        return
    most = max(small, key=lambda kind: kind.per_step)
    size = "" if most.size_bytes is None else f" of {data_size(most.size_bytes)} on average"
    yield facts.finding(
        "small collectives",
        f"{most.per_step:.0f} {_words(most.kind)} per step{size}: each adds latency, in total "
        f"{in_ms(cost_s)} that compute does not hide.",
        cost_s,
        "exchange many tensors at once: DistributedDataParallel's buckets (bucket_cap_mb), or "
        "torch.distributed._coalescing_manager, or one flat buffer",
        evidence=(
            Evidence(name=f"{_words(most.kind)} per step", value=most.per_step, source="traces"),
            Evidence(name="time of one", value=most.time_s / most.per_step, unit="s", source="traces"),
        ),
    )


def exposed_communication(facts: TraceFacts) -> Iterator[Result]:
    job = facts.job
    waiting_s = job.waiting.waiting_s or 0.0
    small_s = sum(_moving_s(kind) for group in job.traffic for kind in group.traffic if _small(kind))
    cost_s = job.breakdown["exposed_s"] - waiting_s - small_s
    if not facts.is_worth(cost_s, _MUCH) or not job.traffic:
        return
    group = job.traffic[0]
    kind = group.traffic[0]
    apart = "" if job.waiting.known == "all" else " (with unknown waiting for other ranks)"
    hidden = "" if job.overlap is None else f"; {percent(job.overlap)} of communication is hidden"
    yield facts.finding(
        "exposed communication",
        f"Exchanges that compute does not hide take {in_ms(cost_s)} per step{apart}, mostly "
        f"{_words(kind.kind)}{_over(group.size)}{hidden}{_judged(job.first, kind, group.size)}.",
        cost_s,
        "begin exchanges earlier, behind the backward pass, and compress gradients to bf16 (a communication "
        "hook) where the link is the limit",
        evidence=(_ms(f"exposed {_words(kind.kind)}", kind.exposed_s), *_rates(kind)),
    )


def _over(size: int | None) -> str:
    return "" if size is None else f" over {counted(size, 'rank')}"


def _rates(traffic: Traffic) -> tuple[Evidence, ...]:
    known = (("algorithm bandwidth", traffic.algbw), ("bus bandwidth", traffic.busbw))
    return tuple(
        Evidence(name=name, value=value, unit="bytes/s", source="traces")
        for name, value in known
        if value is not None
    )


def _judged(trace: RankTrace, traffic: Traffic, ranks: int | None) -> str:
    """The bus bandwidth next to what is published for such GPUs."""
    if traffic.busbw is None or ranks is None or trace.device is None or traffic.size_bytes is None:
        return ""
    typical = typical_busbw(trace.device, ranks, traffic.kind, int(traffic.size_bytes))
    reached = f"; it moves {data_rate(traffic.busbw)} of bus bandwidth"
    return reached if typical is None else f"{reached}, {data_rate(typical.busbw)} are published"


def queued_collectives(facts: TraceFacts) -> Iterator[Result]:
    held_s = [
        math.fsum(min(exchange.queued_s, exchange.exposed_s) for exchange in trace.exchanges)
        / len(trace.steps)
        for trace in facts.job.ranks
    ]
    cost_s = statistics.median(held_s)
    if facts.is_worth(cost_s, _MUCH):
        yield facts.finding(
            "queued collectives",
            f"Exchanges that start early queue behind others on their stream: up to {in_ms(cost_s)} of the "
            "exposed time per step.",
            cost_s,
            "give each kind of exchange its own process group: each then has its own stream",
            estimated=True,
        )


def on_compute_stream(facts: TraceFacts) -> Iterator[Result]:
    if not facts.job.first.on_gpu:
        return
    exposed = [
        math.fsum(each.exposed_s for each in trace.exchanges if not each.beside_compute) / len(trace.steps)
        for trace in facts.job.ranks
    ]
    cost_s = min(statistics.median(exposed), facts.job.breakdown["exposed_s"])
    if facts.is_worth(cost_s):
        yield facts.finding(
            "communication on the compute stream",
            f"Exchanges run on the stream of the kernels, so nothing can hide them: {in_ms(cost_s)} per "
            "step.",
            cost_s,
            "start them with async_op=True and wait for them where the result is needed",
        )


# ---- One rank's host and GPU


def synchronizations(facts: TraceFacts) -> Iterator[Result]:
    cost_s = facts.typical("idle_sync_s")
    if facts.is_worth(cost_s):
        waits = facts.job.first.waits
        named = ", ".join(f"{name} {count:.0f}×" for name, count in list(waits.items())[:_SHOWN])
        yield facts.finding(
            "synchronizations",
            f"The GPU runs out of work for {in_ms(cost_s)} per step because the host waited for it"
            f"{f' ({named} per step)' if named else ''}.",
            cost_s,
            "keep values on the GPU: .item(), .cpu(), nonzero() and printing a loss wait for it; do so only "
            "every 100 steps",
            evidence=tuple(
                Evidence(name=name, value=count, unit="waits per step", source="traces")
                for name, count in list(waits.items())[:_SHOWN]
            ),
        )


def host_bound(facts: TraceFacts) -> Iterator[Result]:
    trace = facts.job.first
    in_loops_s = sum((1.0 - 1.0 / loop.times) * loop.idle_s for loop in trace.loops)  # a finding of its own
    recording_s = min(facts.typical("idle_host_s"), trace.facts.get("recording_s", 0.0))
    cost_s = facts.typical("idle_host_s") - in_loops_s - recording_s
    if not facts.is_worth(cost_s, _MUCH if trace.on_gpu else _MUCH_ON_CPU):
        return
    if facts.typical("idle_queued_s") > _MOST_HELD_BACK * facts.step_s:
        missing = "events missing from the trace: in most idle time, launched work was pending"
        yield Abstention(rule="host-bound", missing=missing)
        return
    if not trace.on_gpu:
        yield facts.finding(
            "host-bound",
            f"{in_ms(cost_s)} per step pass between operations, in Python or in code that was not recorded.",
            cost_s,
            "look at the code around the model: scalescope train -- your command names what the host does",
        )
        return
    kernels, median_s = trace.facts["kernels_per_step"], trace.facts["kernel_median_s"]
    yield facts.finding(
        "host-bound",
        f"The GPU waits {in_ms(facts.typical('idle_host_s'))} per step for the host to launch {kernels:.0f} "
        f"kernels (median {median_s * 1e6:.0f} µs). The recording itself takes about {in_ms(recording_s)} of "
        f"that{', loops ' + in_ms(in_loops_s) if in_loops_s >= 0.01 * facts.step_s else ''}.",
        cost_s,
        "launch less: torch.compile, CUDA graphs (mode=reduce-overhead), a fused optimizer, larger batches",
        evidence=(
            Evidence(name="kernels per step", value=kernels, source="traces"),
            Evidence(name="median kernel", value=median_s, unit="s", source="traces"),
            _ms("recording of the host's events", recording_s),
        ),
        estimated=True,
    )


def held_back(facts: TraceFacts) -> Iterator[Result]:
    cost_s = facts.typical("idle_queued_s")
    if facts.is_worth(cost_s, _MUCH):
        yield facts.finding(
            "held back",
            f"Work was launched, but the GPU ran nothing that is recorded for {in_ms(cost_s)} per step: it "
            "waited for an event of another stream or device, or events are missing from the trace.",
            cost_s,
            "look at the stream that ends such a pause, in Perfetto (ui.perfetto.dev)",
        )


def input_wait(facts: TraceFacts) -> Iterator[Result]:
    cost_s = facts.typical("idle_input_s")
    if facts.is_worth(cost_s):
        yield facts.finding(
            "input",
            f"{'The GPU' if facts.job.first.on_gpu else 'The rank'} waits {in_ms(cost_s)} per step for "
            "samples.",
            cost_s,
            "prepare batches in more loader processes (num_workers, persistent_workers, pin_memory)",
        )


def copies(facts: TraceFacts) -> Iterator[Result]:
    cost_s = facts.typical("copies_s")
    if not facts.is_worth(cost_s):
        return
    pageable = facts.job.first.facts.get("pageable_copies_per_step", 0.0)
    if pageable >= 1.0:
        yield facts.finding(
            "pageable copies",
            f"Copies not hidden by compute take {in_ms(cost_s)} per step; {pageable:.0f} per step are to or "
            "from pageable memory, which blocks the host.",
            cost_s,
            "pin_memory=True in the DataLoader and .to(device, non_blocking=True)",
        )
    else:
        yield facts.finding(
            "copies",
            f"Copies and memsets not hidden by compute take {in_ms(cost_s)} per step.",
            cost_s,
            "copy on a separate stream during the previous step, and avoid .contiguous() and clone()",
        )


def _long_steps(job: JobTrace) -> list[tuple[int, float]]:
    """Steps that took longer than usual, and how much."""
    times_s = job.step_times_s
    if len(times_s) < 3:
        return []
    usual_s = statistics.median(times_s)
    usually_off_s = statistics.median(abs(time_s - usual_s) for time_s in times_s)
    least_s = max(
        (_LONGER - 1.0) * usual_s,
        _LEAST * statistics.fmean(times_s) * len(times_s),
        _STANDS_OUT * usually_off_s,
    )
    return [(number, time_s - usual_s) for number, time_s in enumerate(times_s) if time_s - usual_s > least_s]


def pauses(facts: TraceFacts) -> Iterator[Result]:
    job, steps = facts.job, _long_steps(facts.job)
    if not steps:
        return
    usual_s = statistics.median(job.step_times_s)
    number, extra_s = max(steps, key=lambda step: step[1])
    numbers = [each for each, _ in steps]
    stops = [stop for each in job.ranks for stop in each.stops if stop.step in numbers]
    longest = max(stops, key=lambda stop: stop.time_s, default=None)
    named = longest is not None and longest.time_s > _MUCH_OF_PAUSE * extra_s
    paused = _paused_rank(job, numbers, _MUCH_OF_PAUSE * extra_s)
    rank, at = paused or (None, number)
    grew = _part_that_grew(job.ranks if rank is None else (job.numbered[rank],), at)
    cause = longest.name if longest is not None and named else f"most of it {_PART_WORDS[grew]}"
    rule = "compiling step" if cause == "compilation" else "pause inside a step"
    names = job.first.step_names
    shown = ", ".join(names[each] if names else str(each) for each in numbers)
    where = "" if rank is None else f" on rank {rank}"
    yield facts.finding(
        rule,
        f"{counted(len(steps), 'step')} of {len(job.step_times_s)} took up to {in_ms(usual_s + extra_s)}, "
        f"the others {in_ms(usual_s)}: {cause}{where} (step {shown}).",
        sum(extra for _, extra in steps) / len(job.step_times_s),
        "warm up before you record, and give torch.compile batches of one shape"
        if rule == "compiling step"
        else "do such work less often, or in parallel with training (an asynchronous checkpoint)",
        evidence=(Evidence(name="longer than usual", value=extra_s, unit="s", source="traces"),),
        ranks=() if rank is None else (rank,),
    )


def _paused_rank(job: JobTrace, numbers: Sequence[int], least_s: float) -> tuple[int, int] | None:
    """The rank whose own time, outside of exchanges, is longer by so much in one of these steps, and which;
    None where several are. The others may wait for it in the step after, or before the recording."""
    if len(job.numbered) < 2:
        return None

    def extra(trace: RankTrace, number: int) -> float:
        own = [step["time_s"] - step["exposed_s"] for step in trace.steps]
        return own[number] - statistics.median(own)

    most = []
    for number in numbers:
        more = sorted(((extra(trace, number), rank) for rank, trace in job.numbered.items()), reverse=True)
        if more[1][0] < 0.5 * more[0][0]:
            most.append((*more[0], number))
    extra_s, rank, number = max(most, default=(0.0, 0, 0))
    return (rank, number) if extra_s >= least_s and most else None


_PART_WORDS = {
    "compute_s": "in compute",
    "exposed_s": "in exchanges",
    "copies_s": "in copies",
    "idle_input_s": "waiting for samples",
    "idle_sync_s": "after the host waited for the GPU",
    "idle_host_s": "while the host launched nothing",
    "idle_between_s": "between kernels",
    "idle_queued_s": "while launched work was held back",
}


def _part_that_grew(ranks: Sequence[RankTrace], number: int) -> str:
    """The part that is longer in one step than in the others."""

    def extra(part: str) -> float:
        steps = [
            statistics.fmean(trace.steps[step][part] for trace in ranks)
            for step in range(min(len(trace.steps) for trace in ranks))
        ]
        return steps[number] - statistics.median(steps)

    return max(_PART_WORDS, key=extra)


# ---- Operations


def slow_products(facts: TraceFacts) -> Iterator[Result]:
    trace = facts.job.first
    if not trace.on_gpu:
        return
    rows = [row for row in trace.operations if row.flops and row.gpu_s and row.shapes and row.dtype]
    if not rows:
        if not trace.has_shapes:
            yield Abstention(
                rule="slow products",
                missing="shapes: record with torch.profiler.profile(record_shapes=True)",
            )
        return
    slow = [(row, best) for row in rows if (best := _comparable_rate(row, rows)) is not None]
    lost = [(row, _lost_s(row, best), best) for row, best in slow]
    cost_s = sum(each for _, each, _ in lost)
    if not lost or not facts.is_worth(cost_s):
        return
    row, _, best = max(lost, key=lambda each: each[1])
    odd = _odd(row)
    pad = f" {', '.join(map(str, odd))} is not a multiple of {_ALIGNED[row.dtype or '']}." if odd else ""
    place = f" at {row.line}" if row.line else f" in {row.module}" if row.module else ""
    yield facts.finding(
        "slow products",
        f"{row.op} of {row.shapes} in {row.dtype}{place} reaches {flop_rate(_rate(row))}; comparable "
        f"products of this job reach {flop_rate(best)}.{pad} At that rate a step would take "
        f"{in_ms(cost_s)} less.",
        cost_s,
        f"pad {', '.join(map(str, odd))} to a multiple of 64 (a vocabulary of 50,257 to 50,304)"
        if odd
        else "choose sizes that are multiples of 64, or a format with matrix units (bf16)",
        evidence=(
            Evidence(name="rate", value=_rate(row), unit="FLOP/s", source="traces"),
            Evidence(name="rate of comparable products", value=best, unit="FLOP/s", source="traces"),
        ),
        estimated=True,
    )


def _rate(row: Operation) -> float:
    return (row.flops or 0.0) / (row.gpu_s or math.inf)


def _intensity(row: Operation) -> float:
    """Operations per element that has to be read or written, from the shapes."""
    shapes = _shapes_of(row)
    elements = sum(math.prod(shape) for shape in shapes[-2:])
    return (row.flops or 0.0) / max(row.per_step, 1e-9) / max(elements, 1)


def _shapes_of(row: Operation) -> list[list[int]]:
    parts = (row.shapes or "").split(" ")
    found = [part.strip("[]").split(",") for part in parts if part.startswith("[") and part.endswith("]")]
    return [[int(number) for number in part if number.isdigit()] for part in found]


def _odd(row: Operation) -> list[int]:
    """Extents of its matrices that do not fill rows of matrix units."""
    step = _ALIGNED.get(row.dtype or "")
    shapes = [shape for shape in _shapes_of(row) if len(shape) >= 2]
    if step is None or "conv" in row.op:
        return []
    return sorted({extent for shape in shapes for extent in shape[-2:] if extent % step and extent > step})


def _comparable_rate(row: Operation, rows: Sequence[Operation]) -> float | None:
    """The best rate among products that are no easier; None where this one is not far below."""
    each = (row.flops or 0.0) / row.per_step
    others = [
        _rate(other)
        for other in rows
        if other is not row
        and other.dtype == row.dtype
        and ("conv" in other.op) == ("conv" in row.op)
        and ("attention" in other.op) == ("attention" in row.op)
        and (other.flops or 0.0) / other.per_step <= _COMPARABLE * each
        and _intensity(other) <= 1.5 * _intensity(row)
    ]
    best = max(others, default=0.0)
    is_long = (row.gpu_s or 0.0) / row.per_step > _LONG_PRODUCT_S
    limit = _SLOW if _odd(row) else _VERY_SLOW if is_long else 0.0
    return best if _rate(row) < limit * best else None


def _lost_s(row: Operation, best: float) -> float:
    return (row.gpu_s or 0.0) * (1.0 - _rate(row) / best)


def batchable_loops(facts: TraceFacts) -> Iterator[Result]:
    trace = facts.job.first
    if not trace.has_stacks or not trace.has_shapes:
        missing = "stacks and shapes: torch.profiler.profile(with_stack=True, record_shapes=True)"
        yield Abstention(rule="batchable loops", missing=missing)
        return
    rows = [(loop, _loop_cost_s(loop)) for loop in trace.loops]
    cost_s = min(sum(cost for _, cost in rows), facts.step_s)
    if not rows or not facts.is_worth(cost_s):
        return
    loop, _ = max(rows, key=lambda row: row[1])
    others = sorted({each.line for each, _ in rows} - {loop.line})
    more = f" Also {', '.join(others[:_SHOWN])}." if others else ""
    yield facts.finding(
        "batchable loops",
        f"{loop.line} calls {loop.op} of {loop.shapes} {loop.times} times per call, one after the other: "
        f"together such loops cost about {in_ms(cost_s)} per step.{more}",
        cost_s,
        f"{loop.line}: do it in one batched call (bmm, or scaled_dot_product_attention over all heads)",
        evidence=(
            Evidence(name="calls within one", value=float(loop.times), source="traces"),
            Evidence(name="calls per step", value=loop.per_step, source="traces"),
        ),
        estimated=True,
    )


def _loop_cost_s(loop: Loop) -> float:
    return (1.0 - 1.0 / loop.times) * (loop.idle_s + loop.short_s)


def recomputation(facts: TraceFacts) -> Iterator[Result]:
    trace = facts.job.first
    cost_s = trace.facts.get("recomputed_s", 0.0)
    if facts.is_worth(cost_s):
        again = "kernels" if trace.on_gpu else "operations"
        yield facts.finding(
            "recomputation",
            f"The backward pass recomputes activations: {in_ms(cost_s)} of {again} per step. The trace "
            "does not show how much memory is free.",
            cost_s,
            "turn activation checkpointing off, or use it for fewer layers, where memory allows it",
            evidence=(_ms("computed again", cost_s),),
        )


def fusable_chains(facts: TraceFacts) -> Iterator[Result]:
    trace = facts.job.first
    cost_s = sum(chain.gpu_s - chain.longest_s for chain in trace.chains)
    if not trace.chains or not facts.is_worth(cost_s, _MUCH):
        return
    chain = trace.chains[0]
    place = f" at {chain.line}" if chain.line else ""
    yield facts.finding(
        "fusable chains",
        f"Elementwise kernels follow each other, up to {max(each.length for each in trace.chains)} in a row "
        f"({', '.join(chain.ops[:_SHOWN])} …{place}): each reads and writes memory again. Fused into one, "
        f"they would take about {in_ms(cost_s)} less per step.",
        cost_s,
        "torch.compile the model, or the function with these operations",
        evidence=(_ms("elementwise chains", sum(each.gpu_s for each in trace.chains)),),
        estimated=True,
    )


def _words(kind: str) -> str:
    return {"all_to_all": "all-to-alls", "send_recv": "sends and receives", "other": "exchanges"}.get(
        kind, kind.replace("_", "-") + "s"
    )


RULES: tuple[Rule, ...] = (
    waiting,
    uneven_all_to_all,
    small_collectives,
    exposed_communication,
    queued_collectives,
    on_compute_stream,
    synchronizations,
    host_bound,
    held_back,
    input_wait,
    copies,
    pauses,
    slow_products,
    batchable_loops,
    recomputation,
    fusable_chains,
)
