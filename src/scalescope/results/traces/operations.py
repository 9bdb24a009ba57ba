"""What a rank's steps consist of, operation by operation: time on the GPU and the host, shapes, code lines.

A kernel belongs to the innermost operation of torch that launched it. Where stacks were recorded, its line is
that of the innermost function outside of torch; for the backward pass, that of the forward operation with the
same sequence number. Paths and user names are not kept, only the file's own name.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.results.traces import step_parts
from scalescope.results.traces.intervals import Interval, Overlapping, without
from scalescope.results.traces.names import is_elementwise
from scalescope.results.traces.rank_trace import TraceEvent, TraceTimeline
from scalescope.results.traces.step_trace import StepReader

_MODULE = "nn.Module: "
_FRAME = re.compile(r"^(?P<path>[^<].*)\((?P<line>\d+)\): (?P<function>.*)$")
# Frames that are not the user's: libraries, and what starts scripts.
_LIBRARY = re.compile(
    r"^(torch|scalescope|importlib|multiprocessing|concurrent)/|/(site|dist)-packages/|/lib/python\d|"
    r"^(runpy|contextlib|threading|functools|dataclasses|weakref|typing|abc|copy)\.py"
)
_NUMBERED = re.compile(r"_\d+$")
_SHORT = {
    "float": "fp32", "c10::bfloat16": "bf16", "c10::half": "fp16", "double": "fp64", "long int": "int64",
    "long": "int64", "int": "int32",
}  # fmt: skip
_LONGEST_SHAPES = 120
_LEAST_LOOP = 4  # times that one call repeats the same operation
_SHORT_KERNEL_S = 20e-6  # shorter ones do not fill a GPU
_OVERHEAD_S = 10e-6  # of an operation on the CPU, at most
_LONGEST_PAUSE_S = 2e-3  # between operations: longer ones have other causes
_LEAST_CHAIN = 3  # elementwise kernels in a row
_LOST_CHAIN_S = 50e-6  # a pause longer than that ends a chain
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row: all calls of an operation with the same shapes from the same place, per step."""

    op: str
    kernel: str | None  # the one with the most time
    shapes: str | None
    dtype: str | None
    phase: str | None
    module: str | None
    line: str | None
    per_step: float
    gpu_s: float | None  # None in a trace of the CPU
    host_s: float
    idle_s: float  # of the GPU, before the kernels of this row
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The same operation with the same shapes many times within one call of a function."""

    op: str
    shapes: str
    line: str
    times: int  # within a call
    per_step: float  # all of them
    short_s: (
        float  # per step: kernels of such calls too short to fill a GPU; on the CPU what an operation costs
    )
    idle_s: float  # per step: of the GPU before kernels of such calls; on the CPU between their operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Elementwise kernels that follow each other on one stream, which one kernel could do."""

    length: int
    per_step: float
    gpu_s: float  # per step
    longest_s: float  # per step: of each chain the longest kernel
    line: str | None
    ops: tuple[str, ...]


class Nesting:
    """Events of one thread that lie inside each other, and which one is innermost at a moment."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self.events = sorted(events, key=lambda event: (event.start_s, -event.end_s))
        self._begins = [event.start_s for event in self.events]
        self._parents: list[int] = []
        open_ones: list[int] = []
        for number, event in enumerate(self.events):
            while open_ones and self.events[open_ones[-1]].end_s <= event.start_s:
                open_ones.pop()
            self._parents.append(open_ones[-1] if open_ones else -1)
            open_ones.append(number)

    def at(self, moment: float) -> int:
        """The number of the innermost event; -1 for none."""
        number = bisect.bisect_right(self._begins, moment) - 1
        while number >= 0 and self.events[number].end_s < moment:
            number = self._parents[number]
        return number

    def outwards(self, number: int) -> "list[int]":
        """An event and those around it, the innermost first."""
        chain = []
        while number >= 0:
            chain.append(number)
            number = self._parents[number]
        return chain


def _by_thread(events: Sequence[TraceEvent]) -> dict[object, Nesting]:
    members: dict[object, list[TraceEvent]] = defaultdict(list)
    for event in events:
        members[event.thread].append(event)
    return {thread: Nesting(of_thread) for thread, of_thread in members.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the user's code called something: (module, line, the call itself)."""

    module: str | None = None
    line: str | None = None
    call: tuple[object, int] | None = None


class Operations:
    """The operations of a trace's steps, by place and shapes."""

    def __init__(self, timeline: TraceTimeline, reader: StepReader, windows: Sequence[Interval]) -> None:
        self._timeline, self._reader, self._windows = timeline, reader, windows
        self._operations = _by_thread(timeline.operations)
        self._functions = _by_thread(timeline.functions)
        self._places: dict[tuple[object, int], _Place] = {}
        self._forward = self._forward_operations()
        self._flops = {(p.thread, p.start_s): p.flops.device for p in timeline.products}
        self._work = self._attributed()

    @property
    def has_stacks(self) -> bool:
        """Whether functions of Python were recorded."""
        return bool(self._timeline.functions)

    @property
    def has_shapes(self) -> bool:
        return any(event.facts and "Input Dims" in event.facts for event in self._timeline.operations)

    def _forward_operations(self) -> dict[tuple[int, object], TraceEvent]:
        """By sequence number: the operation whose gradient a node of the graph computes."""
        found: dict[tuple[int, object], TraceEvent] = {}
        for event in self._timeline.operations:
            number = (event.facts or {}).get("Sequence number")
            is_forward = not (event.facts or {}).get("Fwd thread id")
            if isinstance(number, int) and number >= 0 and is_forward:
                found.setdefault((number, 0), event)
        return found

    def _attributed(self) -> list["_Work"]:
        """Each kernel in the steps, or on the CPU each operation, with what called for it."""
        low, high = self._windows[0][0], self._windows[-1][1]
        if not self._timeline.on_gpu:
            return self._on_host(low, high)
        kernels = [event for event in self._timeline.compute if low <= event.start_s < high]
        idle_s = self._idle_before()
        work = []
        for kernel in kernels:
            nesting = self._operations.get(kernel.launcher)
            number = nesting.at(kernel.started_s) if nesting is not None else -1
            operation = nesting.events[number] if nesting is not None and number >= 0 else None
            around = [] if nesting is None else [nesting.events[n] for n in nesting.outwards(number)]
            work.append(_Work(operation, kernel, self._place(operation, around), idle_s.get(id(kernel), 0.0)))
        return work

    def _on_host(self, low: float, high: float) -> list["_Work"]:
        """Innermost operations that compute; their own time is the work."""
        counted = {id(event) for event in self._timeline.compute}
        work = []
        for nesting in self._operations.values():
            inner = {
                parent for number in range(len(nesting.events)) for parent in nesting.outwards(number)[1:2]
            }
            done_s = -math.inf
            for number, event in enumerate(nesting.events):
                if number in inner or id(event) not in counted or not low <= event.start_s < high:
                    continue
                around = [nesting.events[n] for n in nesting.outwards(number)]
                pause_s = event.start_s - done_s
                done_s = max(done_s, event.end_s)
                idle_s = max(0.0, pause_s) if pause_s < _LONGEST_PAUSE_S else 0.0  # of the interpreter
                work.append(_Work(event, event, self._place(event, around), idle_s))
        return work

    def _idle_before(self) -> dict[int, float]:
        """By kernel: how long the GPU had nothing to do before it because of the host."""
        timeline = self._timeline
        begins = [event.start_s for event in timeline.everything]
        found: dict[int, float] = {}
        everything = Overlapping(timeline.everything)
        for window in self._windows:
            busy = [event.interval for event in everything.within(window)]
            for gap in without([window], busy):
                index = bisect.bisect_left(begins, gap[1])
                if index < len(begins):
                    parts = self._reader.idle(gap)
                    caused = parts.get(step_parts.IDLE_HOST, 0.0) + parts.get(step_parts.IDLE_SYNC, 0.0)
                    found[id(timeline.everything[index])] = caused
        return found

    def _place(self, operation: TraceEvent | None, around: Sequence[TraceEvent]) -> _Place:
        """The user's place of an operation, through the forward operation where it is one of backward."""
        if operation is None or not self._functions:
            return _Place()
        direct = self._place_at(operation.thread, operation.start_s)
        if direct.line is not None or direct.module is not None:
            return direct
        for event in around:
            number = (event.facts or {}).get("Sequence number")
            forward = self._forward.get((number, 0)) if isinstance(number, int) else None
            if forward is not None and forward is not event:
                return self._place_at(forward.thread, forward.start_s)
        return direct

    def _place_at(self, thread: object, moment: float) -> _Place:
        nesting = self._functions.get(thread)
        number = nesting.at(moment) if nesting is not None else -1
        if nesting is None or number < 0:
            return _Place()
        key = (thread, number)
        if key not in self._places:
            module = line = None
            call = None
            for outer in nesting.outwards(number):
                name = nesting.events[outer].name
                if module is None and name.startswith(_MODULE):
                    module = _NUMBERED.sub("", name.removeprefix(_MODULE))
                if line is None and (shown := _user_line(name)) is not None:
                    line, call = shown, (thread, outer)
            self._places[key] = _Place(module, line, call)
        return self._places[key]

    def table(self) -> list[Operation]:
        """The rows, the most expensive first."""
        groups: dict[tuple[Any, ...], list[_Work]] = defaultdict(list)
        for work in self._work:
            groups[self._key(work)].append(work)
        rows = [self._row(key, members) for key, members in groups.items()]
        rows.sort(key=lambda row: -(row.host_s if row.gpu_s is None else row.gpu_s))
        return rows[:_MOST_ROWS]

    def _key(self, work: "_Work") -> tuple[Any, ...]:
        name = work.kernel.name if work.operation is None else work.operation.name
        facts = {} if work.operation is None else work.operation.facts or {}
        phase = self._reader.phases.get(id(work.kernel), step_parts.OTHER_KERNELS)
        return (name, _shapes(facts), _dtype(facts), phase, work.place.module, work.place.line)

    def _row(self, key: tuple[Any, ...], members: Sequence["_Work"]) -> Operation:
        steps = len(self._windows)
        calls = {id(work.operation): work.operation for work in members if work.operation is not None}
        kernels: dict[str, float] = defaultdict(float)
        for work in members:
            kernels[work.kernel.name] += work.kernel.end_s - work.kernel.start_s
        on_gpu = self._timeline.on_gpu
        counted = [self._flops_of(call) for call in calls.values()]
        known = [flops for flops in counted if flops is not None]
        return Operation(
            op=key[0],
            kernel=max(kernels, key=kernels.__getitem__) if on_gpu else None,
            shapes=key[1],
            dtype=key[2],
            phase=key[3].removesuffix("_s"),
            module=key[4],
            line=key[5],
            per_step=(len(calls) or len(members)) / steps,
            gpu_s=math.fsum(kernels.values()) / steps if on_gpu else None,
            host_s=math.fsum(call.end_s - call.start_s for call in calls.values()) / steps,
            idle_s=math.fsum(work.idle_s for work in members) / steps,
            flops=math.fsum(known) / steps if known else None,
        )

    def _flops_of(self, operation: TraceEvent) -> float | None:
        return self._flops.get((operation.thread, operation.start_s))

    def loops(self) -> list[Loop]:
        """Calls of the user's functions that repeat the same operation with the same shapes, by their line;
        the longest first."""
        calls: dict[tuple[Any, ...], list[_Work]] = defaultdict(list)
        for work in self._work:
            phase = self._reader.phases.get(id(work.kernel))
            if work.operation is not None and work.place.call is not None and phase != step_parts.OPTIMIZER:
                calls[(work.place.line, work.place.call, phase)].append(work)
        by_line: dict[str, list[tuple[tuple[str, str], int, list[_Work]]]] = defaultdict(list)
        for (line, *_), members in calls.items():
            repeated = _repeated(members)
            if repeated is not None:
                by_line[line].append((*repeated, members))
        rows = [self._loop(line, repeated) for line, repeated in by_line.items()]
        return sorted(rows, key=lambda row: -(row.short_s + row.idle_s))[:20]

    def _loop(self, line: str, calls: Sequence[tuple[tuple[str, str], int, list["_Work"]]]) -> Loop:
        """The loops of one line; the operation is the one of the call that repeats it most."""
        steps = len(self._windows)
        (op, shapes), times, _ = max(calls, key=lambda call: call[1])
        every = [work for _, _, members in calls for work in members]
        lengths = [work.kernel.end_s - work.kernel.start_s for work in every]
        if self._timeline.on_gpu:
            short = [length for length in lengths if length <= _SHORT_KERNEL_S]
        else:
            short = [min(length, _OVERHEAD_S) for length in lengths]
        return Loop(
            op=op,
            shapes=shapes,
            line=line,
            times=times,
            per_step=sum(count for _, count, _ in calls) / steps,
            short_s=math.fsum(short) / steps,
            idle_s=math.fsum(work.idle_s for work in every) / steps,
        )

    def chains(self) -> list[Chain]:
        """Elementwise kernels in a row outside of the optimizer, by where they begin, the longest first."""
        steps = len(self._windows)
        found: dict[tuple[Any, ...], list[list[_Work]]] = defaultdict(list)
        streams: dict[object, list[_Work]] = defaultdict(list)
        for work in sorted(self._work, key=lambda work: work.kernel.start_s):
            streams[work.kernel.thread].append(work)
        for members in streams.values():
            run: list[_Work] = []
            runs: list[list[_Work]] = []
            for work in members:
                if not self._is_fusable(work):
                    run = []
                elif run and _follows(run[-1], work):
                    run.append(work)
                else:
                    run = [work]
                    runs.append(run)
            for run in runs:
                if len(run) >= _LEAST_CHAIN:
                    found[run[0].place.line, tuple(map(_op, run))].append(run)
        rows = []
        for (line, names), runs in found.items():
            times = [[work.kernel.end_s - work.kernel.start_s for work in run] for run in runs]
            rows.append(
                Chain(
                    length=len(names),
                    per_step=len(runs) / steps,
                    gpu_s=math.fsum(map(math.fsum, times)) / steps,
                    longest_s=math.fsum(map(max, times)) / steps,
                    line=line,
                    ops=names[:8],
                )
            )
        return sorted(rows, key=lambda row: row.longest_s - row.gpu_s)[:20]

    def _is_fusable(self, work: "_Work") -> bool:
        phase = self._reader.phases.get(id(work.kernel))
        return phase != step_parts.OPTIMIZER and is_elementwise(work.kernel.name)


def _repeated(members: Sequence["_Work"]) -> tuple[tuple[str, str], int] | None:
    """The operation that a call repeats most often with the same shapes, and how often; None for no loop."""
    counts: dict[tuple[str, str], set[int]] = defaultdict(set)
    for work in members:
        if work.operation is None or work.operation.name not in _BATCHABLE:
            continue
        shapes = _shapes(work.operation.facts or {})
        if shapes is not None:
            counts[work.operation.name, shapes].add(id(work.operation))
    most = max(counts, key=lambda key: len(counts[key]), default=None)
    return None if most is None or len(counts[most]) < _LEAST_LOOP else (most, len(counts[most]))


# Operations where one call can do the work of many: a product of matrices becomes one of batches.
_BATCHABLE = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "convolution", "_convolution", "mkldnn_convolution", "conv2d",
        "cudnn_convolution", "softmax", "_softmax", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "index_select", "embedding", "native_layer_norm",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Work:
    """A kernel with the operation that called for it; on the CPU the operation itself."""

    operation: TraceEvent | None
    kernel: TraceEvent
    place: _Place
    idle_s: float


def _op(work: _Work) -> str:
    return work.kernel.name[:40] if work.operation is None else work.operation.name


def _follows(before: _Work, work: _Work) -> bool:
    return work.kernel.start_s - before.kernel.end_s < _LOST_CHAIN_S


def _user_line(name: str) -> str | None:
    """`train.py(12): forward` of a user's function; None for one of a library or of Python itself."""
    match = _FRAME.match(name)
    if match is None:
        return None
    path = match["path"].replace("\\", "/")  # as Windows writes it
    if _LIBRARY.search(path):
        return None
    return f"{path.rpartition('/')[2]}({match['line']}): {match['function']}"


def _shapes(facts: Mapping[str, Any]) -> str | None:
    """The shapes of an operation's tensors; None where they were not recorded."""
    dims = facts.get("Input Dims")
    if not isinstance(dims, list):
        return None
    shown = [shape for shape in dims if isinstance(shape, list) and shape]
    return " ".join(str(shape).replace(" ", "") for shape in shown)[:_LONGEST_SHAPES]


def _dtype(facts: Mapping[str, Any]) -> str | None:
    kinds = facts.get("Input type")
    for kind in kinds if isinstance(kinds, list) else ():
        if (
            isinstance(kind, str)
            and kind
            and kind not in ("Scalar", "ScalarList", "TensorList", "GenericList")
        ):
            return _SHORT.get(kind.lower(), kind.removeprefix("c10::").lower()[:20])
    return None
