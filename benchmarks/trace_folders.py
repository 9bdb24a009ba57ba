"""Folders of profiler traces whose truth is known: what `scalescope explain FOLDER --json` says about them.

    python benchmarks/trace_folders.py [--cases NAME…] [--keep DIR] [--json FILE] [--only-write]

Every case simulates a job: on each rank a host launches kernels, streams run them in order, and a collective
ends on all ranks of its group when the last one has started and the data has arrived. The times of these
events are written as Kineto traces, each on its own clock, and give the truth; no formula of scalescope is
used. A step ends with the last device work launched in it; the first begins at its ProfilerStep mark. A term
is right within 5 % of the step. Where files are missing, less waiting and more transfer are right too.

The table shows each term and its error in % of the step (! is wrong, ? is unknown), which late rank is
named / true, whether the expected rule is found, time and peak memory, and other findings of at least 5 %.
"""

import argparse
import dataclasses
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]
TOLERANCE = 0.05  # of a step
TERMS = ("compute", "transfer", "waiting", "copies", "idle", "input")  # transfer: exposed, without waiting
NAMING_RULES = ("late rank", "slower kernels than other ranks", "slower host than other ranks")
RULES = {  # the finding that each cause should lead to
    "healthy": None,
    "slow kernels": "slower kernels than other ranks",
    "late host": "slower host than other ranks",
    "stalled host": "slower host than other ranks",
    "changing": "changing late rank",
    "spread": "changing late rank",
    "uneven": "uneven all-to-all",
    "small": "small collectives",
    "exposed": "exposed communication",
    "host-bound": "host-bound",
    "input": "input",
    "copies": "pageable copies",
}
FILES = {
    "plain": "rank{rank}.json.gz",
    "suffix": "rank{rank}_trace.json.gz",
    "tensorboard": "node{node}_{pid}.1716398{pid}123.pt.trace.json.gz",
}
MM, ADAMW = "aten::mm", "aten::_fused_adamw_"
OPS = {  # operation: its kernel, and its time relative to the mean kernel of a layer
    "aten::native_layer_norm": ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>()", 0.4),
    MM: ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 1.3),
    "aten::_flash_attention_forward": ("void pytorch_flash::flash_attention_kernel<Flash_traits>()", 1.3),
    "aten::gelu": ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernel>()", 0.4),
    ADAMW: ("void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>()", 1.0),
}
LAYER = (*list(OPS)[:4], MM, MM)  # repeated until a layer has its kernels
COLLECTIVES = {  # name in metadata, annotation, part of the kernel's name
    "all_reduce": ("allreduce", "all_reduce", "AllReduce"),
    "all_gather": ("_allgather_base", "_all_gather_base", "AllGather"),
    "reduce_scatter": ("_reduce_scatter_base", "_reduce_scatter_base", "ReduceScatter"),
    "all_to_all": ("all_to_allv", "all_to_all", "SendRecv"),
}
STREAMS = {"compute": 7, "dp": 20, "inner": 24}
BYTES_PER_S = {"dp": 40e9, "inner": 200e9}
WIDTH, PRODUCTS_PER_S = 4096, 2e14  # of matrix products
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Case:
    """A job, what is wrong with it, and which files it leaves."""

    name: str
    seed: int
    ranks: int
    cause: str
    strength: float = 0.0  # its meaning depends on the cause
    late: tuple[int, ...] = ()  # ranks that the others wait for
    model: str = "ddp"  # or fsdp, moe
    inner: int = 1  # ranks of a tensor-parallel, shard or expert group: consecutive ones
    layers: int = 6
    kernels: int = 12  # of a layer, in forward and in backward
    kernel_s: float = 120e-6  # mean in forward; twice as long in backward
    steps: int = 4
    has_sync: bool = False  # loss.item() in every step
    has_metadata: bool = True  # of collectives, and shapes; else in whole µs, as older versions write
    has_info: bool = True  # distributedInfo
    files: str = "plain"
    missing: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def readable(self) -> list[int]:
        return [rank for rank in range(self.ranks) if rank not in (*self.missing, *self.truncated)]

    def file(self, rank: int) -> str:
        return FILES[self.files].format(rank=rank, node=rank // 8, pid=20_000 + 7 * rank)


_64: Json = {"ranks": 64, "inner": 8, "layers": 5, "kernels": 6, "kernel_s": 250e-6}
_1024: Json = {"ranks": 1024, "inner": 8, "layers": 4, "kernels": 4, "kernel_s": 450e-6, "steps": 3}
CASES = (
    Case("healthy-8", 101, 8, "healthy", inner=2, steps=5),
    Case("healthy-8-old", 102, 8, "healthy", has_metadata=False, has_sync=True, files="tensorboard"),
    Case("healthy-8-moe", 103, 8, "healthy", model="moe", inner=8),
    Case("slow-kernels-8", 104, 8, "slow kernels", 0.2, late=(5,), inner=2),
    Case("slow-kernels-8-old", 105, 8, "slow kernels", 0.12, late=(0,), has_metadata=False, has_info=False),
    Case("late-host-8", 106, 8, "late host", 8.0, late=(6,), model="fsdp", inner=4, steps=5),
    Case("stalled-host-8", 107, 8, "stalled host", 0.15, late=(3,), has_sync=True, files="suffix"),
    Case("changing-8", 108, 8, "changing", 0.25, inner=2, steps=5, has_sync=True),
    Case("uneven-8", 109, 8, "uneven", 1.0, late=(2,), model="moe", inner=8, has_sync=True),
    Case("small-8", 110, 8, "small", layers=8, kernels=14, kernel_s=60e-6),
    Case("exposed-8", 111, 8, "exposed", 1.5, has_sync=True, files="suffix"),
    Case("host-bound-8", 112, 8, "host-bound", 45e-6, kernel_s=10e-6, steps=5),
    Case("input-8", 113, 8, "input", 0.4, has_sync=True),
    Case("copies-8", 114, 8, "copies", 0.15, inner=2),
    Case("missing-8", 115, 8, "healthy", inner=4, missing=(2, 7)),
    Case("missing-late-8", 116, 8, "slow kernels", 0.2, late=(4,), missing=(4,)),
    Case("healthy-64", 201, cause="healthy", model="fsdp", files="tensorboard", **_64),
    Case("slow-kernels-64", 202, cause="slow kernels", strength=0.15, late=(41,), **_64),
    Case("stalled-host-64", 203, cause="stalled host", strength=0.2, late=(17,), has_sync=True, **_64),
    Case("spread-64", 204, cause="spread", strength=0.12, steps=5, has_sync=True, **_64),
    Case("uneven-64", 205, cause="uneven", strength=1.5, model="moe", steps=5, **_64),
    Case("exposed-64-truncated", 206, cause="exposed", strength=1.4, model="fsdp", truncated=(33,), **_64),
    Case(
        "slow-kernels-64-old", 207, cause="slow kernels", strength=0.2, late=(8,), has_metadata=False, **_64
    ),
    Case("healthy-1024", 301, cause="healthy", model="fsdp", **_1024),
    Case("two-late-8", 117, 8, "slow kernels", 0.2, late=(1, 6), inner=2),
    Case("half-late-8", 118, 8, "slow kernels", 0.15, late=(4, 5, 6, 7), inner=4, model="fsdp"),
    Case("late-hosts-8", 119, 8, "stalled host", 0.2, late=(0, 5), has_sync=True, files="suffix"),
    Case("slow-node-64", 208, cause="slow kernels", strength=0.15, late=(*range(24, 32),), **_64),
    Case(
        "slow-node-64-fsdp", 209, cause="slow kernels", strength=0.2, late=(*range(8),), model="fsdp", **_64
    ),
    Case(
        "slow-node-64-old",
        210,
        cause="stalled host",
        strength=0.25,
        late=(*range(40, 48),),
        has_sync=True,
        has_metadata=False,
        **_64,
    ),
    Case("slow-kernels-1024", 302, cause="slow kernels", strength=0.2, late=(700,), files="suffix", **_1024),
)


class Work(NamedTuple):
    """A line of the program that all ranks run: a host operation and the device work that it launches."""

    phase: str  # input, forward, backward or optimizer
    kind: str  # compute, collective or copy; loader and pause launch nothing
    name: str
    time_s: float = 0.0
    host_s: float = 30e-6
    stream: str = "compute"
    waits_for: tuple[str, ...] = ()  # streams whose last work must end first
    blocks: bool = False  # the host waits for the end
    nelems: int = 0  # of the larger side of a collective
    is_expert: bool = False  # its time is proportional to the tokens that the rank received
    is_dispatch: bool = False
    number: int = 0  # pairs forward and backward


class Group(NamedTuple):
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass
class Load:
    """What one rank does differently in one step."""

    kernels: float = 1.0
    host: float = 1.0
    pause_s: float = 0.0
    tokens: float = 1.0


@dataclass(slots=True)
class Activity:
    """Device work of one rank, in true time."""

    work: Work
    step: int
    called_s: float
    launch_s: float
    launched_s: float
    returned_s: float
    start_s: float
    end_s: float
    latest_s: float  # when the last rank of the group started
    tokens: float
    peers: tuple[float, ...] = ()  # tokens of every rank of an all-to-all


@dataclass
class Rank:
    rank: int
    speed: float
    host_s: float
    marks: list[float] = field(default_factory=list)
    loads: list[tuple[float, float]] = field(default_factory=list)  # calls of the data loader
    activities: list[Activity] = field(default_factory=list)
    free: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0.0))


def groups_of(case: Case) -> dict[str, list[Group]]:
    """The group of every rank, for each stream of collectives."""
    ranks, size = tuple(range(case.ranks)), case.inner
    groups: dict[str, list[Group]] = {}
    if size == 1 or case.model == "moe":
        groups["dp"] = [Group("0", "default_pg", ranks)] * case.ranks
    elif size < case.ranks:
        across = [Group(str(1 + lane), "mesh_dp", ranks[lane::size]) for lane in range(size)]
        groups["dp"] = [across[rank % size] for rank in ranks]
    if size > 1:
        name = {"ddp": "mesh_tp", "fsdp": "mesh_shard", "moe": "mesh_ep"}[case.model]
        firsts = range(0, case.ranks, size)
        within = [Group(str(1 + size + first // size), name, ranks[first : first + size]) for first in firsts]
        groups["inner"] = [within[rank // size] for rank in ranks]
    return groups


def program(case: Case) -> list[Work]:
    """A step as all ranks launch it."""
    names = [LAYER[index % len(LAYER)] for index in range(case.kernels)]
    layer_s = sum(OPS[name][1] for name in names) * case.kernel_s
    busy_s, half = 3.0 * case.layers * layer_s, len(names) // 2
    groups, host_s = groups_of(case), case.strength if case.cause == "host-bound" else 30e-6
    works: list[Work] = []
    blocked: list[str] = []  # streams that the next kernel waits for

    def compute(phase: str, name: str, time_s: float, **more: Any) -> None:
        works.append(Work(phase, "compute", name, time_s, host_s, waits_for=tuple(blocked), **more))
        blocked.clear()

    def exchange(phase: str, name: str, stream: str, time_s: float, **more: Any) -> None:
        if stream in groups:
            nelems = int(time_s * BYTES_PER_S[stream] / (4 if name == "all_reduce" else 2)) // 8192 * 8192
            after = ("compute", "inner") if stream == "dp" else ("compute",)
            more = {"nelems": nelems or 2048, **more}
            works.append(Work(phase, "collective", name, time_s, 1.2 * host_s, stream, after, **more))

    def blocking(phase: str, name: str, stream: str, time_s: float, **more: Any) -> None:
        exchange(phase, name, stream, time_s, **more)
        blocked.append(stream)

    def layer(phase: str, number: int) -> None:
        """The kernels of a layer, with what its ranks exchange between them."""
        is_backward = phase == "backward"
        following = number - 1 if is_backward else number + 1
        blocked.extend(["inner"] * (case.model == "fsdp"))
        order = range(len(names))
        for place, index in enumerate(reversed(order) if is_backward else order):
            name, is_expert = names[index], case.model == "moe" and index >= half
            time_s = OPS[name][1] * case.kernel_s * (2.0 if is_backward else 1.0)
            compute(phase, name, time_s, is_expert=is_expert, number=number * len(names) + index)
            if case.cause == "small":
                blocking(phase, "all_reduce", "dp", 30e-6, nelems=2048)
            if case.model == "fsdp" and place == 0 and 0 <= following < case.layers:
                exchange(phase, "all_gather", "inner", 0.06 * layer_s)
            if place + 1 in (half, len(names)) and case.model == "ddp":
                blocking(phase, "all_reduce", "inner", 0.015 * layer_s)
            if place + 1 in (half, len(names)) and case.model == "moe":
                blocking(phase, "all_to_all", "inner", 0.02 * layer_s, is_dispatch=place + 1 == half)

    works.append(Work("input", "loader", LOADER, case.strength * busy_s if case.cause == "input" else 1e-4))
    works.append(Work("input", "pause", "pause"))
    is_slow = case.cause == "copies"
    copied = "Memcpy HtoD (Pageable -> Device)" if is_slow else "Memcpy HtoD (Pinned -> Device)"
    works.append(Work("input", "copy", copied, case.strength * busy_s if is_slow else 30e-6, blocks=is_slow))
    if case.model == "fsdp":
        exchange("forward", "all_gather", "inner", 0.06 * layer_s)
    for number in range(case.layers):
        layer("forward", number)
    share = case.strength if case.cause == "exposed" else 0.08  # of the time of backward
    for number in reversed(range(case.layers)):
        layer("backward", number)
        if case.model == "fsdp":
            exchange("backward", "reduce_scatter", "inner", 0.06 * layer_s)
        if case.cause != "small" or number == 0:
            exchange("backward", "all_reduce", "dp", 2.0 * layer_s * share)
    blocked.extend(groups)
    for part in range(3):
        compute("optimizer", ADAMW, 0.01 * busy_s, number=part)
    if case.has_sync:
        works.append(Work("optimizer", "copy", "Memcpy DtoH (Device -> Pageable)", 2e-6, blocks=True))
    return works


def loads_of(case: Case, step: int, draw: random.Random) -> list[Load]:
    """What the cause does to every rank in a step."""
    loads = [Load() for _ in range(case.ranks)]
    late = [loads[rank] for rank in case.late]
    if case.cause == "slow kernels":
        for load in late:
            load.kernels += case.strength
    elif case.cause == "changing":
        loads[(case.seed + 3 * step) % case.ranks].kernels += case.strength
    elif case.cause == "spread":
        for load in loads:
            load.kernels += case.strength * abs(draw.gauss(0.0, 1.0))
    elif case.cause == "late host":
        for load in late:
            load.host = case.strength
    elif case.cause == "stalled host":
        for load in late:
            load.pause_s = case.strength * 3.0 * case.layers * case.kernels * case.kernel_s
    elif case.cause == "uneven":
        for first in range(0, case.ranks, case.inner):
            hot = case.late[0] if case.late else first + draw.randrange(case.inner)
            for rank in range(first, first + case.inner):
                weight = 1.0 + case.strength * (rank == hot)
                loads[rank].tokens = weight * case.inner / (case.inner + case.strength)
    return loads


def simulate(case: Case) -> list[Rank]:
    """All ranks run the program line by line; a collective joins the ranks of its group."""
    draw, works, groups = random.Random(case.seed), program(case), groups_of(case)
    ranks = [Rank(rank, draw.gauss(1.0, 0.002), draw.uniform(0.0, 100e-6)) for rank in range(case.ranks)]
    for step in range(case.steps):
        loads = loads_of(case, step, draw)
        for each in ranks:
            each.marks.append(each.host_s)
        for work in works:
            for each, load in zip(ranks, loads, strict=True):
                issue(each, work, step, load, draw)
            if work.kind == "collective":
                for group in dict.fromkeys(groups[work.stream]):
                    join([ranks[rank] for rank in group.ranks], work, draw)
    for each in ranks:
        each.marks.append(each.host_s)
    return ranks


def issue(each: Rank, work: Work, step: int, load: Load, draw: random.Random) -> None:
    """The host calls; the device starts when launch, stream and inputs allow."""
    called_s = each.host_s
    if work.kind in ("loader", "pause"):
        each.host_s += load.pause_s if work.kind == "pause" else work.time_s * draw.uniform(0.95, 1.05)
        if work.kind == "loader":
            each.loads.append((called_s, each.host_s))
        return
    cost_s = work.host_s * load.host * draw.uniform(0.85, 1.15)
    launch_s, launched_s = called_s + 0.6 * cost_s, called_s + 0.8 * cost_s
    inputs = [each.free[stream] for stream in work.waits_for]
    start_s = max(launched_s + 2e-6, each.free[work.stream] + 1e-6, *inputs)
    time_s = work.time_s * draw.gauss(1.0, 0.01)
    if work.kind == "compute":
        time_s *= load.kernels * each.speed * (load.tokens if work.is_expert else 1.0)
    each.free[work.stream] = end_s = start_s + time_s
    each.host_s = end_s + 10e-6 if work.blocks else called_s + cost_s
    times = (called_s, launch_s, launched_s, each.host_s, start_s, end_s, start_s)
    each.activities.append(Activity(work, step, *times, load.tokens))


def join(members: list[Rank], work: Work, draw: random.Random) -> None:
    """The collective ends when all have started and the data has arrived, some microseconds apart."""
    tokens = tuple(each.activities[-1].tokens for each in members)
    latest_s = max(each.activities[-1].start_s for each in members)
    transfer_s = work.time_s * draw.gauss(1.0, 0.02) * (max(tokens) if work.name == "all_to_all" else 1.0)
    for each in members:
        activity = each.activities[-1]
        activity.latest_s, activity.peers = latest_s, tokens
        activity.end_s = each.free[work.stream] = latest_s + transfer_s + draw.uniform(0.0, 4e-6)


PARTS = {  # what runs, and the part of the step that the time counts as: the first that runs decides
    "compute": "compute",
    "waiting": "waiting",
    "transfer": "transfer",
    "copy": "copies",
    "loader": "idle_input",
    "queued": "idle_other",
    "step": "idle_host",
}


def truth_of(each: Rank) -> list[dict[str, float]]:
    """Where the time of every step went, in seconds."""
    edges: list[tuple[float, str, int]] = []

    def add(kind: str, start_s: float, end_s: float) -> None:
        if end_s > start_s:
            edges.extend(((start_s, kind, 1), (end_s, kind, -1)))

    ends = [0.0] * (len(each.marks) - 1)
    for activity in each.activities:
        ends[activity.step] = max(ends[activity.step], activity.end_s)
        add("queued", activity.launched_s, activity.start_s)
        if activity.work.kind == "collective":
            add("waiting", activity.start_s, activity.latest_s)
            add("transfer", activity.latest_s, activity.end_s)
        else:
            add(activity.work.kind, activity.start_s, activity.end_s)
    for load in each.loads:
        add("loader", *load)
    edges.extend((end_s, "step", 0) for end_s in ends)
    steps = [dict.fromkeys(PARTS.values(), 0.0) for _ in ends]
    running = Counter({"step": 1})
    step, before_s = 0, each.marks[0]
    for time_s, kind, change in sorted(edges):
        if step < len(steps):
            steps[step][next(PARTS[name] for name in PARTS if running[name])] += time_s - before_s
        step, before_s = step + (kind == "step"), time_s
        running[kind] += change
    return steps


def metadata_of(activity: Activity, group: Group) -> Json:
    """What NCCL kernels and record_param_comms carry in newer versions."""

    def text(values: Iterable[int]) -> str:
        """The profiler writes at most 30 values."""
        texts = [str(value) for value in values]
        return "[" + ", ".join(texts[:30] + ["..."] * (len(texts) > 30)) + "]"

    work, size = activity.work, len(group.ranks)
    given = work.nelems // (size if work.name == "all_gather" else 1)
    taken = work.nelems // (size if work.name == "reduce_scatter" else 1)
    splits: list[list[int]] = [[], []]
    if work.name == "all_to_all":
        rows = work.nelems // WIDTH // size + 1
        splits = [[round(rows * tokens) for tokens in activity.peers], [round(rows * activity.tokens)] * size]
        splits = splits if work.is_dispatch else splits[::-1]
        given, taken = (sum(split) * WIDTH for split in splits)
    return {
        "Collective name": COLLECTIVES[work.name][0],
        "In msg nelems": given,
        "Out msg nelems": taken,
        "Group size": size,
        "dtype": "BFloat16",
        "In split size": text(splits[0]),
        "Out split size": text(splits[1]),
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": text(group.ranks),
    }


class Trace:
    """One rank's events in the format and on the clock of its profiler."""

    def __init__(self, case: Case, each: Rank, groups: dict[str, list[Group]]) -> None:
        draw = random.Random(f"{case.seed}/{each.rank}")
        self.case, self.each, self.is_new = case, each, case.has_metadata
        self.groups = {stream: of_rank[each.rank] for stream, of_rank in groups.items()}
        self.pid, self.device = 20_000 + 7 * each.rank, each.rank % 8
        self.begins_us = draw.uniform(-3e6, 3e6) + (4_458_676e6 if self.is_new else 1_661_203_462e6)
        self.us_per_s = 1e6 * (1.0 + draw.gauss(0.0, 20e-6))
        self.external, self.correlation = 0, 100_000

    def span(self, cat: str, name: str, tid: int, start_s: float, end_s: float, args: Json) -> Json:
        digits = 3 if self.is_new else None
        start, end = (round(self.begins_us + at_s * self.us_per_s, digits) for at_s in (start_s, end_s))
        pid = self.device if cat in ("kernel", "gpu_memcpy", "gpu_user_annotation") else self.pid
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start}
        return event | {"dur": round(end - start, digits), "args": args}

    def call(self, cat: str, name: str, tid: int, start_s: float, end_s: float, **args: Any) -> Json:
        self.external += 1
        ids = {"External id": self.external, "Ev Idx": self.external - 1}
        return self.span(cat, name, tid, start_s, end_s, ids | args)

    def op(self, cat: str, name: str, activity: Activity, depth: int, **args: Any) -> Json:
        """A call around the launch; deeper ones lie within the others."""
        inset_s = depth * 0.05 * (activity.launch_s - activity.called_s)
        times = (activity.called_s + inset_s, activity.returned_s - inset_s / 2)
        return self.call(cat, name, self.thread(activity), *times, **args)

    def thread(self, activity: Activity) -> int:
        return self.pid + 3 * (activity.work.phase == "backward")

    def events(self) -> Iterator[Json]:
        each, pid = self.each, self.pid
        for process, label in ((pid, "CPU"), (self.device, f"GPU {self.device}")):
            event = {"name": "process_labels", "ph": "M", "ts": self.begins_us, "pid": process, "tid": 0}
            yield event | {"args": {"labels": label}}
        for step, load in enumerate(each.loads):
            yield self.call("user_annotation", f"ProfilerStep#{step + 3}", pid, *each.marks[step : step + 2])
            yield self.call("user_annotation", LOADER, pid, *load)
            last = [one for one in each.activities if one.step == step and one.work.name == ADAMW]
            times = (last[0].called_s, last[-1].returned_s)
            yield self.call("user_annotation", "Optimizer.step#AdamW.step", pid, *times)
        events = {"collective": self.collective, "copy": self.copy, "compute": self.compute}
        for activity in each.activities:
            yield from events[activity.work.kind](activity)

    def copy(self, activity: Activity) -> Iterator[Json]:
        work = activity.work
        yield self.op("cpu_op", "aten::copy_", activity, 1)
        size = {"bytes": 4 if "DtoH" in work.name else int(work.time_s * 12e9)}
        yield from self.launch(activity, "cudaMemcpyAsync", "gpu_memcpy", work.name, **size)
        if work.blocks:
            self.correlation += 1
            args = {"External id": self.correlation, "cbid": 131, "correlation": self.correlation}
            times = (activity.launched_s + 1e-6, activity.returned_s - 5e-6)
            yield self.span("cuda_runtime", "cudaStreamSynchronize", self.thread(activity), *times, args)

    def compute(self, activity: Activity) -> Iterator[Json]:
        work, (kernel, _), name = activity.work, OPS[activity.work.name], activity.work.name
        more: Json = {}
        sequence = activity.step * self.case.layers * self.case.kernels + work.number
        if work.phase == "forward":
            more = {"Sequence number": sequence, "Fwd thread id": 0}
        elif work.phase == "backward":
            node = "".join(word.title() for word in name[6:].split("_")) + "Backward0"
            if name != MM:
                name, kernel = f"{name}_backward", kernel.replace("kernel<", "backward_kernel<")
            for depth, outer in enumerate((f"autograd::engine::evaluate_function: {node}", node)):
                paired = {"Sequence number": sequence, "Fwd thread id": 1}
                yield self.op("cpu_op", outer, activity, depth, **paired)
        if self.is_new:
            products = work.time_s * (activity.tokens if work.is_expert else 1.0) * PRODUCTS_PER_S
            dims = [[max(1, round(products / (2 * WIDTH * WIDTH) / 64)) * 64, WIDTH]]
            dims += [[WIDTH, WIDTH]] * (name == MM)
            more |= {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
        yield self.op("cpu_op", name, activity, 2, **more)
        yield from self.launch(activity, "cudaLaunchKernel", "kernel", kernel)

    def collective(self, activity: Activity) -> Iterator[Json]:
        work, group = activity.work, self.groups[activity.work.stream]
        name, annotation, part = COLLECTIVES[work.name]
        metadata = metadata_of(activity, group) if self.is_new else {}
        if work.phase == "backward":
            node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            yield self.op("cpu_op", node, activity, 0)
        op = "alltoall_base" if work.name == "all_to_all" else name
        yield self.op("cpu_op", f"c10d::{op}_", activity, 1)
        yield self.op("user_annotation", f"nccl:{annotation}", activity, 3)
        yield self.op("cpu_op", "record_param_comms", activity, 2, **metadata)  # kernels have its External id
        kernel, runtime = f"ncclKernel_{part}_RING_LL_Sum_float(ncclWorkElem)", "cudaLaunchKernel"
        if self.is_new:
            how = "_Sum_bf16" * ("educe" in part) + "_RING_LL" * (part != "SendRecv")
            kernel = f"ncclDevKernel_{part}{how}(ncclDevKernelArgsStorage<4096ul>)"
            runtime = "cudaLaunchKernelExC"
            where = (STREAMS[work.stream], activity.start_s, activity.end_s)
            args = {"External id": self.external - 1}
            yield self.span("gpu_user_annotation", f"nccl:{annotation}", *where, args)
        yield from self.launch(activity, runtime, "kernel", kernel, **metadata)

    def launch(self, activity: Activity, runtime: str, cat: str, name: str, **more: Any) -> Iterator[Json]:
        """The call and the work; in older versions their External id is not the operation's."""
        self.correlation += 1
        external, stream = self.external if self.is_new else self.correlation, STREAMS[activity.work.stream]
        ids = {"External id": external, "correlation": self.correlation}
        times, thread = (activity.launch_s, activity.launched_s), self.thread(activity)
        yield self.span("cuda_runtime", runtime, thread, *times, ids | {"cbid": 211})
        args = {**ids, "device": self.device, "context": 1, "stream": stream, **more}
        yield self.span(cat, name, stream, activity.start_s, activity.end_s, args)

    def text(self) -> str:
        """One event per line."""
        gpu = {"name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "numSms": 108}
        header: Json = {"schemaVersion": 1, "deviceProperties": [{"id": index, **gpu} for index in range(8)]}
        info: Json = {"backend": "nccl", "rank": self.each.rank, "world_size": self.case.ranks}
        if self.is_new:
            everyone, names = tuple(range(self.case.ranks)), ("pg_name", "pg_desc", "ranks")
            known = dict.fromkeys([Group("0", "default_pg", everyone), *self.groups.values()])
            config = [dict(zip(names, group, strict=True)) | {"pg_size": len(group.ranks)} for group in known]
            info |= {"pg_count": len(config), "pg_config": config}
            header |= {"record_shapes": 1, "baseTimeNanoseconds": 1_711_964_646_000_000_000}
        header |= {"distributedInfo": info} if self.case.has_info else {}
        events = ",\n".join(json.dumps(event) for event in self.events())
        return f'{json.dumps(header)[:-1]}, "traceEvents": [\n{events}\n], "displayTimeUnit": "ms"}}\n'


def write_case(case: Case, folder: Path) -> Json:
    """Writes the traces of a case; its truth is returned."""
    folder.mkdir(parents=True)
    ranks, groups = simulate(case), groups_of(case)
    for each in ranks:
        if each.rank not in case.missing:
            packed = gzip.compress(Trace(case, each, groups).text().encode(), compresslevel=1, mtime=0)
            length = len(packed) // (2 if each.rank in case.truncated else 1)
            (folder / case.file(each.rank)).write_bytes(packed[:length])
    by_rank = {each.rank: truth_of(each) for each in ranks}
    steps = [step for rank in case.readable for step in by_rank[rank]]
    mean = {part: sum(step[part] for step in steps) / len(steps) for part in PARTS.values()}
    idle = sum(mean[part] for part in mean if part.startswith("idle_"))
    mean |= {"step": sum(mean.values()), "input": mean["idle_input"], "idle": idle}
    expected = {"late_ranks": case.late, "rule": RULES[case.cause]}
    return {"case": dataclasses.asdict(case), **expected, "mean": mean, "by_rank": by_rank}


def explained(folder: Path, result: Path) -> Json:
    """What the command answers, how long it takes, and the memory of its largest process."""
    command = [sys.executable, "-m", "scalescope", "explain", str(folder), "--json", str(result)]
    result.unlink(missing_ok=True)
    began, errors = time.monotonic(), result.with_suffix(".stderr")
    with errors.open("wb") as stream:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
        _, status, usage = os.wait4(process.pid, 0)  # the memory of one child
        process.returncode = os.waitstatus_to_exitcode(status)
    cost = {"took_s": time.monotonic() - began, "peak_bytes": usage.ru_maxrss * 1024}
    try:
        return {**cost, "error": None, "answer": json.loads(result.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        last = errors.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return {**cost, "error": f"exit code {process.returncode}: {last[:150]}", "answer": None}


def scored(case: Case, mean: dict[str, float], answer: Json) -> Json:
    """Errors in shares of the step, and what is right; None: there is nothing to be right about."""
    said, is_complete = answer["breakdown"], len(case.readable) == case.ranks
    waiting, true = said.get("waiting_s"), dict(mean)
    if waiting is None:
        true["transfer"] += true["waiting"]  # only their sum is known
    values = {"compute": said["compute_s"], "copies": said["copies_s"], "input": said["idle_input_s"]}
    values |= {"waiting": waiting, "transfer": said["exposed_s"] - (waiting or 0.0)}
    values |= {"idle": sum(value or 0.0 for name, value in said.items() if name.startswith("idle_"))}
    errors = {term: (values[term] - true[term]) / mean["step"] for term in TERMS if values[term] is not None}
    if not is_complete and waiting is not None:
        errors["waiting"], errors["transfer"] = max(errors["waiting"], 0.0), min(errors["transfer"], 0.0)
    terms: dict[str, bool | None] = {term: abs(error) <= TOLERANCE for term, error in errors.items()}
    for term in set(TERMS) - set(errors):
        terms[term] = None if term == "waiting" and not (is_complete and case.has_metadata) else False
    shares = {found["rule"]: found["share"] for found in answer["findings"]}
    named = {rank for found in answer["findings"] if found["rule"] in NAMING_RULES for rank in found["ranks"]}
    named |= set(answer["waiting"]["late_ranks"])
    rule = RULES[case.cause] if set(case.late) <= set(case.readable) else None
    others = {name: share for name, share in shares.items() if name not in (rule, "late rank")}
    others = {name: share for name, share in others.items() if share >= TOLERANCE}
    unread = {Path(file).name for file in answer["unread"]}
    checks = {
        "late ranks named": set(case.late) <= named if rule and case.late else None,
        "no wrong rank named": named <= set(case.late),
        "expected rule found": rule in shares if rule else None,
        "no finding of 5 % where nothing is wrong": not others if case.cause == "healthy" else None,
        "waiting not called known where files are missing": answer["waiting"]["known"] != "all",
        "exactly the truncated files unread": unread == {case.file(rank) for rank in case.truncated},
    }
    if is_complete:
        checks["waiting not called known where files are missing"] = None
    return {"errors": errors, "terms": terms, "checks": checks, "named": sorted(named), "others": others}


def line_of(case: Case, mean: dict[str, float], row: Json) -> str:
    """A row of the table."""
    line = f"{case.name:21}{mean['step'] * 1e3:6.1f}"
    for term in TERMS:
        line += f"{100 * mean[term] / mean['step']:9.1f}"
        if "terms" in row:
            line += f"{100 * row['errors'][term]:+6.1f}" if term in row["errors"] else "     ?"
            line += "!" if row["terms"][term] is False else " "
    if "terms" in row:
        found = {True: "yes", False: "no", None: "–"}[row["checks"]["expected rule found"]]
        names = "/".join(",".join(map(str, ranks)) or "–" for ranks in (row["named"], case.late))
        line += f"{names:>8}{found:>5}{row['took_s']:7.1f}{row['peak_bytes'] / 2**20:6.0f}"
        return line + "".join(f"  {name} {share:.0%}" for name, share in row["others"].items())
    return line + (f"  {row['took_s']:.1f} s, {row['error']}" if "error" in row else "")


def totals(rows: list[Json]) -> Iterator[str]:
    """How many are right, of those that could be."""
    answered = [row for row in rows if "terms" in row]
    yield f"cases answered: {len(answered)} of {len(rows)}"
    every = [right for row in answered for right in row["terms"].values() if right is not None]
    yield f"terms within 5 %: {sum(every)} of {len(every)}"
    for kind in ("terms", "checks"):
        for name in TERMS if kind == "terms" else list(answered[0][kind]) if answered else []:
            known = [row[kind][name] for row in answered if row[kind][name] is not None]
            yield f"{'  ' * (kind == 'terms')}{name}: {sum(known)} of {len(known)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["*"], metavar="NAME", help="names; * is any text")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep traces, truths and answers there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there")
    parser.add_argument("--only-write", action="store_true", help="write traces and truths, explain nothing")
    asked = parser.parse_args()
    cases = [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in asked.cases)]
    if not cases:
        parser.error(f"no such case; there are {', '.join(case.name for case in CASES)}")
    heads = "".join(f"{term:>9}{'' if asked.only_write else '  error'}" for term in TERMS)
    print(f"{'':21}{'ms':>6}{heads}" + ("" if asked.only_write else "   named rule      s   MiB"))
    rows: list[Json] = []
    for case in cases:
        with tempfile.TemporaryDirectory() as temporary:
            place: Path = asked.keep or Path(temporary)
            shutil.rmtree(place / case.name, ignore_errors=True)
            # In another process: a child's peak memory includes what its parent had when it was started.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                truth = pool.submit(write_case, case, place / case.name).result()
            mean = truth["mean"]
            (place / f"{case.name}.truth.json").write_text(json.dumps(truth), encoding="utf-8")
            row: Json = {"name": case.name, "ranks": case.ranks, "cause": case.cause, "truth": mean}
            if not asked.only_write:
                row |= explained(place / case.name, place / f"{case.name}.answer.json")
                answer = row.pop("answer")
                try:
                    row |= scored(case, mean, answer) if answer else {}
                except (KeyError, TypeError, AttributeError) as error:
                    row["error"] = f"the answer does not follow the contract: {error!r}"
        rows.append(row)
        print(line_of(case, mean, row), flush=True)
    if not asked.only_write:
        print("\n" + "\n".join(totals(rows)))
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
