"""Reads one rank's trace: what each step computes, sends, copies and waits for.

Two kinds of traces are read alike. On the CPU, operations of the rank's own threads are compute and gloo's
events, on its threads, communication. On a GPU only what the device did counts: kernels of NCCL are
communication, all others compute. Steps are told apart by the ranges that the worker set.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalescope.analysis.intervals import Interval, common, hull, merged, total, within, without
from scalescope.results.trace import CLEAR, COMPUTE, INPUT, PREFIX, is_communication

HOST = "host"
DATA = "data"
QUEUED = "queued"
IDLE_CAUSES = {
    HOST: "the host had started nothing",
    DATA: "waiting for samples",
    QUEUED: "started, but held back by another stream or on its way",
}
_US = 1e-6
_BACKWARD_OPERATION = "autograd::engine::evaluate_function"
_NOT_COMPUTE = ("c10d::", "_c10d_functional::", "record_param_comms", "torch.distributed.ddp")
_ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "char": 1, "byte": 1
}  # fmt: skip
_ITEM_NAMES = {"c10::half": "half", "c10::bfloat16": "bfloat16", "long int": "long"}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time; on a GPU with the moment at which the host started it."""

    name: str
    start_s: float
    end_s: float
    started_s: float
    size_bytes: int | None = None

    @property
    def interval(self) -> Interval:
        return self.start_s, self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One exchange of a step: how long it took, and how much of that nothing hid."""

    name: str
    size_bytes: int | None
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
    # (from, to) after the step began: of backward's compute, and of its first and last transfer
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


def read_rank(events: Sequence[dict[str, Any]]) -> TracedRank:
    """What a rank's trace says; the first step pays for the profiler's start and is left out."""
    timeline = _Timeline(events)
    windows = timeline.windows()[1:]
    return TracedRank(
        on_gpu=timeline.on_gpu,
        steps=tuple(timeline.step(window) for window in windows),
        kernels=_longest(timeline, windows),
    )


class _Timeline:
    """The events of a trace, sorted into what they are."""

    def __init__(self, raw: Iterable[dict[str, Any]]) -> None:
        by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in raw:
            by_category[str(one.get("cat", "")).lower()].append(one)
        starts = _starts_of_launches(by_category["cuda_runtime"] + by_category["cuda_driver"])
        annotations = [_event(one) for one in by_category["user_annotation"]]
        operations = [_event(one) for one in by_category["cpu_op"]]
        kernels = [_event(one, starts) for one in by_category["kernel"]]
        self.on_gpu = bool(kernels)
        self._ranges = [one for one in annotations if one.name.startswith(PREFIX)]
        self._backward = [one for one in operations if one.name.startswith(_BACKWARD_OPERATION)]
        self._backward_intervals = merged(one.interval for one in self._backward)
        moved = [_event(one, starts) for one in by_category["gpu_memcpy"]]
        if self.on_gpu:
            cleared = [_event(one, starts) for one in by_category["gpu_memset"]]
            self.compute = [one for one in kernels if not is_communication(one.name)] + cleared
            self.communication = [one for one in kernels if is_communication(one.name)]
        else:
            self.compute = [one for one in operations if not _is_no_compute(one.name)]
            self.compute += [one for one in self._ranges if one.name == COMPUTE]
            self.communication = [one for one in (*annotations, *operations) if _is_transfer(one.name)]
        self.copies = moved

    def windows(self) -> list[Interval]:
        """From the end of one step to the end of the next, on the device's own time."""
        ends = sorted(one.end_s for one in self._ranges if one.name == CLEAR)
        starts = sorted(one.start_s for one in self._ranges)
        if not ends:
            return []
        host = list(zip([starts[0], *ends[:-1]], ends, strict=True))
        if not self.on_gpu:
            return host
        device_ends = [self._device_end(window) for window in host]
        first = min((one.start_s for one in self.compute if one.started_s >= starts[0]), default=starts[0])
        return list(zip([first, *device_ends[:-1]], device_ends, strict=True))

    def _device_end(self, host: Interval) -> float:
        """When the device had done all that the host started in a step; copies may be for the next one."""
        started = [one.end_s for one in (*self.compute, *self.communication) if _was_started(one, host)]
        return max(started, default=host[1])

    def step(self, window: Interval) -> TracedStep:
        compute = merged(within((one.interval for one in self.compute), window))
        sent = sorted(
            (one for one in self.communication if window[0] <= one.start_s < window[1]),
            key=lambda one: one.start_s,
        )
        communication = merged(within((one.interval for one in sent), window))
        copies = merged(within((one.interval for one in self.copies), window))
        busy = merged([*compute, *communication, *copies])
        return TracedStep(
            time_s=window[1] - window[0],
            compute_s=total(compute),
            communication_s=total(communication),
            overlap_s=total(common(compute, communication)),
            copy_s=total(without(copies, [*compute, *communication])),
            idle_s=self._idle(without([window], busy)),
            collectives=tuple(_collective(one, compute) for one in sent),
            backward_compute=_after(hull(self._backward_compute(window)), window),
            communication=_after(hull([one.interval for one in sent]), window),
            spans={
                name: [(start - window[0], end - window[0]) for start, end in found]
                for name, found in (("compute", compute), ("communication", communication), ("copy", copies))
            },
        )

    def _backward_compute(self, window: Interval) -> list[Interval]:
        """Compute of the backward pass itself: what follows it, copying buckets back, waits for them."""
        if not self.on_gpu:
            return within(self._backward_intervals, window)
        starts = [start for start, _ in self._backward_intervals]
        found = []
        for one in self.compute:
            place = bisect.bisect_right(starts, one.started_s) - 1
            if place >= 0 and one.started_s <= self._backward_intervals[place][1]:
                found.append(one.interval)
        return within(found, window)

    def _idle(self, gaps: list[Interval]) -> dict[str, float]:
        """Idle time by its cause: nothing was started, and why; or something was, and did not run yet."""
        waits = merged(one.interval for one in self._ranges if one.name == INPUT)
        empty, queued = (gaps, []) if not self.on_gpu else self._split_by_start(gaps)
        waiting_s = total(common(empty, waits))
        return {DATA: waiting_s, HOST: total(empty) - waiting_s, QUEUED: total(queued)}

    def _split_by_start(self, gaps: list[Interval]) -> tuple[list[Interval], list[Interval]]:
        """Each gap before and after the host started what ended it."""
        everything = sorted((*self.compute, *self.communication, *self.copies), key=lambda one: one.start_s)
        begins = [one.start_s for one in everything]
        empty: list[Interval] = []
        queued: list[Interval] = []
        for start, end in gaps:
            place = bisect.bisect_left(begins, end)
            turn = everything[place].started_s if place < len(everything) else end
            turn = min(max(turn, start), end)
            empty += [(start, turn)] if start < turn else []
            queued += [(turn, end)] if turn < end else []
        return empty, queued


def _was_started(one: Event, host: Interval) -> bool:
    return host[0] <= one.started_s < host[1]


def _after(interval: Interval | None, window: Interval) -> Interval | None:
    return None if interval is None else (interval[0] - window[0], interval[1] - window[0])


def _is_no_compute(name: str) -> bool:
    return name.startswith(_NOT_COMPUTE) or is_communication(name)


def _is_transfer(name: str) -> bool:
    """gloo's own events; NCCL's annotations on the host only say that a kernel was started."""
    return is_communication(name) and not name.lower().startswith(("nccl", "c10d"))


def _collective(one: Event, compute: list[Interval]) -> Collective:
    return Collective(
        name=one.name.removeprefix("gloo:"),
        size_bytes=one.size_bytes,
        time_s=one.end_s - one.start_s,
        exposed_s=total(without([one.interval], compute)),
    )


def _starts_of_launches(calls: Iterable[dict[str, Any]]) -> dict[int, float]:
    """When the host called for what carries the same correlation on the device."""
    found = {}
    for one in calls:
        correlation = one.get("args", {}).get("correlation")
        if isinstance(correlation, int):
            found[correlation] = float(one["ts"]) * _US
    return found


def _event(raw: dict[str, Any], starts: dict[int, float] | None = None) -> Event:
    start_s, end_s = float(raw["ts"]) * _US, (float(raw["ts"]) + float(raw["dur"])) * _US
    arguments = raw.get("args") or {}
    name = str(raw.get("name", ""))
    started_s = (starts or {}).get(arguments.get("correlation", -1), start_s)
    size = _size_bytes(arguments) if is_communication(name) else None
    return Event(name, start_s, end_s, started_s, size)


def _size_bytes(arguments: dict[str, Any]) -> int | None:
    """Bytes of a transfer: from its tensor on gloo, from NCCL's own words on a GPU."""
    if "In msg nelems" in arguments:
        item = _item_bytes(str(arguments.get("dtype", "")))
        return None if item is None else int(arguments["In msg nelems"]) * item
    sizes, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    if not sizes or not kinds or not isinstance(sizes[0], list):
        return None
    shape = sizes[0][0] if sizes[0] and isinstance(sizes[0][0], list) else sizes[0]
    item = _item_bytes(str(kinds[0]))
    return None if item is None else math.prod(int(n) for n in shape) * item


def _item_bytes(kind: str) -> int | None:
    lowered = kind.lower()
    return _ITEM_BYTES.get(_ITEM_NAMES.get(lowered, lowered))


def _longest(timeline: _Timeline, windows: list[Interval]) -> tuple[tuple[str, float, int], ...]:
    """What compute consists of, by name; on the CPU without what an operation called in turn."""
    if not windows:
        return ()
    low, high = windows[0][0], windows[-1][1]
    inside = [one for one in timeline.compute if low <= one.start_s < high]
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for one, own_s in zip(inside, _own_times(inside, timeline.on_gpu), strict=True):
        times[one.name] += own_s
        counts[one.name] += 1
    ordered = sorted(times, key=lambda name: -times[name])
    return tuple((name, times[name], counts[name]) for name in ordered)


def _own_times(events: list[Event], on_gpu: bool) -> list[float]:
    """Time of each event without the events inside it."""
    own = [one.end_s - one.start_s for one in events]
    if on_gpu:
        return own
    order = sorted(range(len(events)), key=lambda n: (events[n].start_s, -events[n].end_s))
    stack: list[int] = []
    for number in order:
        while stack and events[stack[-1]].end_s <= events[number].start_s:
            stack.pop()
        if stack:
            own[stack[-1]] -= events[number].end_s - events[number].start_s
        stack.append(number)
    return own
