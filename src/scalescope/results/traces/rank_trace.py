"""Reads one rank's trace: what each step computes, sends, copies and waits for.

Two kinds of traces are read alike. On the CPU, operations of the rank's own threads are compute and gloo's
events, on its threads, communication. On a GPU only what the device did counts: kernels of NCCL are
communication, all others compute. The ranges that the worker set separate the steps.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalescope.results.traces.events import (
    BACKWARD,
    CLEAR,
    COMPUTE,
    FORWARD,
    INPUT,
    OPTIMIZER,
    PREFIX,
    WHOLE_STEP,
    is_communication,
    is_transfer,
)
from scalescope.results.traces.intervals import Interval, common, hull, merged, total, within, without
from scalescope.results.traces.products import product_of

HOST = "host"
DATA = "data"
QUEUED = "queued"
IDLE_CAUSES = {
    HOST: "waiting for the host to launch work",
    DATA: "waiting for samples",
    QUEUED: "queued behind another stream",
}
_PARTS = (FORWARD, BACKWARD, OPTIMIZER, WHOLE_STEP)
_US = 1e-6
BACKWARD_OPERATION = "autograd::engine::evaluate_function"
# Wrappers around other operations: some wait inside (a hook of FSDP), so only what they call is compute.
_NO_COMPUTE = re.compile(
    r"^(autograd::engine::|torch::autograd::|c10d::|_c10d_functional::|record_param_comms|"
    r"torch\.distributed\.)|Backward\d*$"
)
_ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "char": 1, "byte": 1
}  # fmt: skip
_ITEM_NAMES = {"c10::half": "half", "c10::bfloat16": "bfloat16", "long int": "long"}


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that took time; on a GPU with the moment at which the host started it."""

    name: str
    start_s: float
    end_s: float
    started_s: float
    size_bytes: int | None = None
    thread: object = None

    @property
    def interval(self) -> Interval:
        return self.start_s, self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One exchange of a step: how long it took, and how much of that nothing hid."""

    name: str
    size_bytes: int | None
    start_s: float  # after the step began
    time_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Where one step of one rank went; the parts may overlap, exposed parts and idle time do not."""

    time_s: float
    compute_s: float
    communication_s: float
    overlap_s: float
    copy_s: float  # hidden behind nothing
    idle_s: dict[str, float]  # by cause
    collectives: tuple[Collective, ...]
    # (from, to) after the step began: of backward's compute, and of the transfers that backward started
    backward_compute: Interval | None
    communication: Interval | None
    # For a picture: seconds after the step began.
    spans: dict[str, list[Interval]] = field(default_factory=dict)

    @property
    def exposed_s(self) -> float:
        return self.communication_s - self.overlap_s

    @property
    def span_overlap(self) -> float | None:
        """Overlap as DDP counts it: of the span of all transfers, what lies before backward's end."""
        if self.communication is None or self.backward_compute is None:
            return None
        start, end = self.communication
        if end <= start:
            return None
        return min(1.0, max(0.0, (self.backward_compute[1] - start) / (end - start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRank:
    """All recorded steps of a rank, and what its device spent its time on."""

    on_gpu: bool
    steps: tuple[TracedStep, ...]
    kernels: tuple[tuple[str, float, int], ...]  # (name, seconds, count), the longest first


def read_rank(events: Sequence[dict[str, Any]], *, on_gpu: bool) -> TracedRank:
    """The steps of a rank's trace; the first one includes the start of the profiler and is left out."""
    timeline = TraceTimeline(events, on_gpu)
    windows = timeline.windows()[1:]
    return TracedRank(
        on_gpu=on_gpu,
        steps=tuple(timeline.step(window) for window in windows),
        kernels=_longest(timeline, windows),
    )


class TraceTimeline:
    """The events of a trace, sorted into what they are, and by time."""

    def __init__(self, raw: Iterable[dict[str, Any]], on_gpu: bool) -> None:
        by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in raw:
            by_category[str(event.get("cat", "")).lower()].append(event)
        calls = by_category["cuda_runtime"] + by_category["cuda_driver"]
        starts = _starts_of_launches(calls)
        self.calls = [_event(event) for event in calls]  # of the host to the GPU's driver
        annotations = [_event(event) for event in by_category["user_annotation"]]
        operations = [_event(event) for event in by_category["cpu_op"]]
        self.operations = operations
        known = (product_of(event, *_interval(event)) for event in by_category["cpu_op"])
        self.products = [product for product in known if product is not None]
        self.on_gpu = on_gpu
        self.ranges = sorted(
            (annotation for annotation in annotations if annotation.name.startswith(PREFIX)),
            key=lambda event: event.start_s,
        )
        transfers = [event for event in (*annotations, *operations) if is_transfer(event.name)]
        if on_gpu:
            kernels = [_event(event, starts) for event in by_category["kernel"]]
            cleared = [_event(event, starts) for event in by_category["gpu_memset"]]
            self.compute = [kernel for kernel in kernels if not is_communication(kernel.name)] + cleared
            self.sent = [kernel for kernel in kernels if is_communication(kernel.name)] + transfers
        else:
            # What gloo's own threads compute is sending; sends to one rank are on the rank's own thread.
            senders = {transfer.thread for transfer in transfers} - {part.thread for part in self.ranges}
            rank_operations = (operation for operation in operations if operation.thread not in senders)
            self.compute = [operation for operation in rank_operations if not _is_no_compute(operation.name)]
            self.compute += [event for event in self.ranges if event.name == COMPUTE]
            self.sent = self._ended_with_their_part(transfers)
        copies = [_event(event, starts) for event in by_category["gpu_memcpy"]]
        self.copies = copies
        self.sent.sort(key=lambda event: event.start_s)
        self.everything = sorted((*self.compute, *self.sent, *copies), key=lambda event: event.start_s)
        self._begins = [event.start_s for event in self.everything]
        self._computing = merged(event.interval for event in self.compute)
        self._copying = merged(copy.interval for copy in copies)
        self.waiting = merged(event.interval for event in self.ranges if event.name == INPUT)
        self._backward = merged(self._backward_compute(operations))

    def _ended_with_their_part(self, transfers: list[TraceEvent]) -> list[TraceEvent]:
        """gloo's threads may close an event long after its waiters went on: it ends with the part of the step
        in which it began."""
        parts = [event for event in self.ranges if event.name in _PARTS]
        begins = [part.start_s for part in parts]
        shortened = []
        for transfer in transfers:
            index = bisect.bisect_right(begins, transfer.start_s) - 1
            inside = index >= 0 and transfer.start_s < parts[index].end_s
            end_s = min(transfer.end_s, parts[index].end_s) if inside else transfer.end_s
            shortened.append(
                TraceEvent(
                    transfer.name,
                    transfer.start_s,
                    end_s,
                    transfer.started_s,
                    transfer.size_bytes,
                    transfer.thread,
                )
            )
        return shortened

    def _backward_compute(self, operations: list[TraceEvent]) -> list[Interval]:
        """Compute of the backward pass itself: what follows it, copying buckets back, waits for them."""
        hosts = merged(
            operation.interval for operation in operations if operation.name.startswith(BACKWARD_OPERATION)
        )
        if not self.on_gpu:
            return common(hosts, self._computing)
        return [event.interval for event in self.compute if covers(hosts, event.started_s)]

    def windows(self) -> list[Interval]:
        """From the end of one step to the end of the next, on the device's own time."""
        ends = [event.end_s for event in self.ranges if event.name == CLEAR]
        if not ends:
            return []
        first = self.ranges[0].start_s
        host = list(zip([first, *ends[:-1]], ends, strict=True))
        if not self.on_gpu:
            return host
        ordered = sorted((*self.compute, *self.sent), key=lambda event: event.started_s)
        begins = [event.started_s for event in ordered]
        device_ends = [first]
        for low, high in host:
            started = ordered[bisect.bisect_left(begins, low) : bisect.bisect_left(begins, high)]
            # Copies may be for the next step; a step that starts nothing ends with the one before.
            device_ends.append(max((event.end_s for event in started), default=device_ends[-1]))
            device_ends[-1] = max(device_ends[-2], device_ends[-1])
        begun = min((event.start_s for event in ordered if event.started_s >= first), default=first)
        return list(zip([begun, *device_ends[1:-1]], device_ends[1:], strict=True))

    def step(self, window: Interval) -> TracedStep:
        compute = _cut(self._computing, window)
        sent = [event for event in self.sent if window[0] <= event.start_s < window[1]]
        communication = merged(within((event.interval for event in sent), window))
        copies = _cut(self._copying, window)
        busy = merged([*compute, *communication, *copies])
        return TracedStep(
            time_s=window[1] - window[0],
            compute_s=total(compute),
            communication_s=total(communication),
            overlap_s=total(common(compute, communication)),
            copy_s=total(without(copies, [*compute, *communication])),
            idle_s=self._idle(without([window], busy)),
            collectives=tuple(_collective(event, compute, window) for event in sent),
            backward_compute=_after(hull(_cut(self._backward, window)), window),
            communication=_after(hull(within(self._of_backward(sent), window)), window),
            spans={
                name: [(start - window[0], end - window[0]) for start, end in intervals]
                for name, intervals in (
                    ("compute", compute),
                    ("communication", communication),
                    ("copy", copies),
                )
            },
        )

    def _of_backward(self, sent: list[TraceEvent]) -> list[Interval]:
        """Transfers that backward started; buffers and parameters travel at other times."""
        backward = [event.interval for event in self.ranges if event.name == BACKWARD]
        return [event.interval for event in sent if covers(backward, event.started_s)]

    def _idle(self, gaps: list[Interval]) -> dict[str, float]:
        """Idle time by its cause: nothing was started, and why; or something was, and did not run yet."""
        empty, queued = (gaps, []) if not self.on_gpu else self.split_by_start(gaps)
        waiting_s = total(common(empty, self.waiting))
        return {DATA: waiting_s, HOST: total(empty) - waiting_s, QUEUED: total(queued)}

    def split_by_start(self, gaps: list[Interval]) -> tuple[list[Interval], list[Interval]]:
        """Each gap before and after the host started what ended it."""
        empty: list[Interval] = []
        queued: list[Interval] = []
        for start, end in gaps:
            index = bisect.bisect_left(self._begins, end)
            turn = self.everything[index].started_s if index < len(self.everything) else end
            turn = min(max(turn, start), end)
            empty += [(start, turn)] if start < turn else []
            queued += [(turn, end)] if turn < end else []
        return empty, queued


def _cut(ordered: list[Interval], window: Interval) -> list[Interval]:
    """What of sorted intervals without overlaps lies inside a window."""
    first = bisect.bisect_left(ordered, (window[0],))
    last = bisect.bisect_left(ordered, (window[1],))
    return within(ordered[max(0, first - 1) : last], window)


def covers(ordered: list[Interval], moment: float) -> bool:
    """Whether one of sorted intervals holds a moment."""
    index = bisect.bisect_right(ordered, (moment, math.inf)) - 1
    return index >= 0 and moment <= ordered[index][1]


def _after(interval: Interval | None, window: Interval) -> Interval | None:
    return None if interval is None else (interval[0] - window[0], interval[1] - window[0])


def _is_no_compute(name: str) -> bool:
    return _NO_COMPUTE.search(name) is not None or is_communication(name)


def _collective(event: TraceEvent, compute: list[Interval], window: Interval) -> Collective:
    (start_s, end_s) = (event.start_s, min(event.end_s, window[1]))
    return Collective(
        name=event.name.removeprefix("gloo:"),
        size_bytes=event.size_bytes,
        start_s=start_s - window[0],
        time_s=end_s - start_s,
        exposed_s=total(without([(start_s, end_s)], compute)),
    )


def _starts_of_launches(calls: Iterable[dict[str, Any]]) -> dict[int, float]:
    """When the host called for what carries the same correlation on the device."""
    starts = {}
    for call in calls:
        correlation = (call.get("args") or {}).get("correlation")
        if isinstance(correlation, int):
            starts[correlation] = float(call["ts"]) * _US
    return starts


def _interval(raw: dict[str, Any]) -> Interval:
    return float(raw["ts"]) * _US, (float(raw["ts"]) + float(raw["dur"])) * _US


def _event(raw: dict[str, Any], starts: dict[int, float] | None = None) -> TraceEvent:
    start_s, end_s = _interval(raw)
    arguments = raw.get("args") or {}
    name = str(raw.get("name", ""))
    correlation = arguments.get("correlation", -1)
    started_s = (starts or {}).get(correlation, start_s) if isinstance(correlation, int) else start_s
    size = _size_bytes(arguments) if is_communication(name) else _copied_bytes(arguments)
    return TraceEvent(name, start_s, end_s, started_s, size, raw.get("tid"))


def _copied_bytes(arguments: dict[str, Any]) -> int | None:
    """Bytes of a copy to, from or on the GPU."""
    size = arguments.get("bytes")
    return int(size) if isinstance(size, int | float) else None


def _size_bytes(arguments: dict[str, Any]) -> int | None:
    """Bytes of a transfer: from its tensor on gloo, from NCCL's own words on a GPU."""
    if "In msg nelems" in arguments:
        item = _item_bytes(str(arguments.get("dtype", "")))
        count = arguments["In msg nelems"]
        return int(count) * item if item is not None and isinstance(count, int) else None
    sizes, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    if not sizes or not kinds or not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    tensor_bytes = [
        _item_count(shape) * (_item_bytes(str(kind)) or 0) for shape, kind in zip(sizes, kinds, strict=False)
    ]
    return sum(tensor_bytes) or None


def _item_count(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors; what is no tensor has none."""
    if not isinstance(shape, list):
        return 0
    if shape and isinstance(shape[0], list):
        return sum(_item_count(inner) for inner in shape)
    return math.prod(extent for extent in shape if isinstance(extent, int))


def _item_bytes(kind: str) -> int | None:
    lowered = kind.lower()
    return _ITEM_BYTES.get(_ITEM_NAMES.get(lowered, lowered))


def _longest(timeline: TraceTimeline, windows: list[Interval]) -> tuple[tuple[str, float, int], ...]:
    """What compute consists of, by name; on the CPU without what an operation called in turn."""
    if not windows:
        return ()
    low, high = windows[0][0], windows[-1][1]
    inside = [event for event in timeline.compute if low <= event.start_s < high]
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event, own_s in zip(inside, _own_times(inside, timeline.on_gpu), strict=True):
        times[event.name] += own_s
        counts[event.name] += 1
    ordered = sorted(times, key=lambda name: -times[name])
    return tuple((name, times[name], counts[name]) for name in ordered)


def _own_times(events: list[TraceEvent], on_gpu: bool) -> list[float]:
    """Time of each event without the events inside it."""
    times = [event.end_s - event.start_s for event in events]
    if on_gpu:
        return times
    order = sorted(range(len(events)), key=lambda n: (events[n].start_s, -events[n].end_s))
    stacks: dict[object, list[int]] = defaultdict(list)
    for number in order:
        stack = stacks[events[number].thread]
        while stack and events[stack[-1]].end_s <= events[number].start_s:
            stack.pop()
        if stack:
            times[stack[-1]] -= events[number].end_s - events[number].start_s
        stack.append(number)
    return times
