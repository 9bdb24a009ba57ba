"""Reads one rank's trace: what each step computes, sends, copies and waits for.

Two kinds of traces are read alike. On the CPU, operations of the rank's own threads are compute and gloo's
events, on its threads, communication. On a GPU only what the device did counts: kernels of NCCL and RCCL are
communication, all others compute. The ranges that our worker set separate the steps; in traces of others
the profiler's own marks do, and without any the whole recording counts as one step.
"""

import bisect
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scalescope.results.traces.events import (
    BACKWARD,
    CLEAR,
    COMPUTE,
    FORWARD,
    INPUT,
    OPTIMIZER,
    PREFIX,
    STEP,
    WHOLE_STEP,
    is_communication,
    is_transfer,
)
from scalescope.results.traces.intervals import (
    Cover,
    Interval,
    Overlapping,
    common,
    hull,
    merged,
    total,
    within,
    without,
)
from scalescope.results.traces.products import Product, product_of

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
_MOST_BYTES = 1 << 60  # of a transfer or a copy
_LONGEST_NAME = 300  # of an event; templates of kernels have thousands of characters
_CATEGORIES = {
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "user_annotation": "annotation",
    "cpu_op": "operation",
    "operator": "operation",
    "python_function": "function",
    "kernel": "kernel",
    "gpu_memset": "memset",
    "memset": "memset",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
}  # earlier versions of the profiler have shorter names
_COLLECTIVE_FACTS = (
    "Collective name", "Group size", "In msg nelems", "Out msg nelems", "dtype", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
)  # fmt: skip
_OPERATION_FACTS = ("Input Dims", "Input type", "Sequence number", "Fwd thread id")
_LOADER = re.compile(r"^enumerate\(DataLoader\)|DataLoaderIter\.__next__")
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


class TraceEvent(NamedTuple):
    """Something that took time; on a GPU with the moment at which the host started it."""

    name: str
    start_s: float
    end_s: float
    started_s: float
    size_bytes: int | None = None
    thread: object = None  # of the host; on a GPU the stream
    launcher: object = None  # the host's thread that started it on a GPU; None where that is not recorded
    facts: Mapping[str, Any] | None = None  # of an operation its shapes, of a transfer what NCCL says of it

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


def read_rank(events: Iterable[dict[str, Any]], *, on_gpu: bool) -> TracedRank:
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

    def __init__(self, raw: Iterable[dict[str, Any]], on_gpu: bool | None = None) -> None:
        """Events are taken one by one, and only what is needed of them is kept.

        Where `on_gpu` is None, a trace with kernels is one of a GPU.
        """
        self.calls: list[TraceEvent] = []  # of the host to the GPU's driver
        self.operations: list[TraceEvent] = []
        self.functions: list[TraceEvent] = []  # of Python, where stacks were recorded
        self.products: list[Product] = []
        annotations: list[TraceEvent] = []
        on_device: list[tuple[str, object, TraceEvent]] = []
        launches: dict[int, TraceEvent] = {}
        take = _Taking()
        for each in raw:
            category = _CATEGORIES.get(str(each.get("cat", "")).lower())
            if category is None:
                continue
            taken = take.event(each, category)
            correlation = (each.get("args") or {}).get("correlation")
            if category == "call":
                self.calls.append(taken)
                if isinstance(correlation, int):
                    launches[correlation] = taken
            elif category == "annotation":
                annotations.append(taken)
            elif category == "function":
                self.functions.append(taken)
            elif category == "operation":
                self.operations.append(taken)
                product = product_of(each, taken.start_s, taken.end_s)
                if product is not None:
                    self.products.append(product)
            else:
                on_device.append((category, correlation, taken))
        self.annotations = sorted(annotations, key=lambda event: event.start_s)
        self.ranges = [event for event in self.annotations if event.name.startswith(PREFIX)]
        self.marks = _marks(self.annotations)
        self.on_gpu = any(kind == "kernel" for kind, _, _ in on_device) if on_gpu is None else on_gpu
        transfers = [event for event in (*annotations, *self.operations) if is_transfer(event.name)]
        self.copies: list[TraceEvent] = []
        self.compute: list[TraceEvent] = []
        self.sent: list[TraceEvent] = []
        for kind, event in _launched(on_device, launches):
            if kind in ("copy", "memset"):
                self.copies.append(event)
            elif not self.on_gpu:
                continue
            elif kind == "kernel" and is_communication(event.name):
                self.sent.append(event)
            else:
                self.compute.append(event)
        if self.on_gpu:
            self.sent += transfers
        else:
            # What gloo's own threads compute is sending; sends to one rank are on the rank's own thread.
            senders = {transfer.thread for transfer in transfers}
            senders -= {part.thread for part in (*self.ranges, *self.marks)}
            rank_operations = (operation for operation in self.operations if operation.thread not in senders)
            self.compute = [operation for operation in rank_operations if not is_no_compute(operation.name)]
            self.compute += [event for event in self.ranges if event.name == COMPUTE]
            self.sent = self._ended_with_their_part(transfers)
        self.sent.sort(key=lambda event: event.start_s)
        self.everything = sorted((*self.compute, *self.sent, *self.copies), key=lambda event: event.start_s)
        self._begins = [event.start_s for event in self.everything]
        self._computing = merged(event.interval for event in self.compute)
        self._copying = merged(copy.interval for copy in self.copies)
        inputs = [event for event in self.ranges if event.name == INPUT]
        if (
            not self.ranges
        ):  # torch's own name for a loader's batch, in an annotation or, earlier, an operation
            inputs = [e for e in (*annotations, *self.operations) if _LOADER.search(e.name)]
        self.waiting = merged(event.interval for event in inputs)
        self._waiting = Cover(self.waiting)
        self._sent = Overlapping(self.sent)
        self._backward = merged(self._backward_compute(self.operations))

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

    @property
    def host_steps(self) -> list[Interval]:
        """The steps as the host marked them: our own ranges, else the profiler's, else all as one."""
        ends = [event.end_s for event in self.ranges if event.name == CLEAR]
        if ends:
            return list(zip([self.ranges[0].start_s, *ends[:-1]], ends, strict=True))
        if self.marks:
            begins = [mark.start_s for mark in self.marks]
            return list(zip(begins, [*begins[1:], self.marks[-1].end_s], strict=True))
        events = self.everything if self.on_gpu else [*self.everything, *self.annotations]
        whole = hull([event.interval for event in events])
        return [] if whole is None else [whole]

    def windows(self) -> list[Interval]:
        """From the end of one step to the end of the next, on the device's own time."""
        host = self.host_steps
        if not self.on_gpu or not (self.ranges or self.marks):
            return host
        first = host[0][0] if host else 0.0
        ordered = sorted((*self.compute, *self.sent), key=lambda event: event.started_s)
        begins = [event.started_s for event in ordered]
        before = ordered[: bisect.bisect_left(begins, first)]
        device_ends = [max((event.end_s for event in before), default=first)]
        device_ends[0] = max(first, device_ends[0])
        for low, high in host:
            started = ordered[bisect.bisect_left(begins, low) : bisect.bisect_left(begins, high)]
            # Copies may be for the next step; a step that starts nothing ends with the one before.
            device_ends.append(max((event.end_s for event in started), default=device_ends[-1]))
            device_ends[-1] = max(device_ends[-2], device_ends[-1])
        if not self.marks_steps_of_others:
            begun = min((event.start_s for event in ordered if event.started_s >= first), default=first)
            device_ends[0] = begun
        return list(itertools.pairwise(device_ends))

    @property
    def marks_steps_of_others(self) -> bool:
        """Whether the steps are those of a job that our worker did not record."""
        return not any(event.name == CLEAR for event in self.ranges)

    def step(self, window: Interval) -> TracedStep:
        compute = _cut(self._computing, window)
        covered = Cover(compute)
        sent = self._sent.begun_within(window)
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
            collectives=tuple(_collective(event, covered, window) for event in sent),
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
        waiting_s = sum(self._waiting.seconds(*each) for each in empty)
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


def is_no_compute(name: str) -> bool:
    return _NO_COMPUTE.search(name) is not None or is_communication(name)


def _collective(event: TraceEvent, compute: Cover, window: Interval) -> Collective:
    (start_s, end_s) = (event.start_s, min(event.end_s, window[1]))
    return Collective(
        name=event.name.removeprefix("gloo:"),
        size_bytes=event.size_bytes,
        start_s=start_s - window[0],
        time_s=end_s - start_s,
        exposed_s=end_s - start_s - compute.seconds(start_s, end_s),
    )


class _Taking:
    """Events of a file as they are kept: names once, times from the first event on."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._base_us: float | None = None

    def _shared(self, value: Any) -> Any:
        """A list of shapes or types, kept once: steps repeat them."""
        return self._values.setdefault(str(value), value) if isinstance(value, list) else value

    def event(self, raw: Mapping[str, Any], category: str) -> TraceEvent:
        """One event; on a GPU it is not yet known when the host started it."""
        begin_us, time_us = _microseconds(raw["ts"]), _microseconds(raw["dur"])
        if self._base_us is None:
            self._base_us = begin_us
        start_s = (begin_us - self._base_us) * _US
        end_s = (begin_us + time_us - self._base_us) * _US  # events that end together have one end
        name = str(raw.get("name", ""))[:_LONGEST_NAME]
        name = self._names.setdefault(name, name)
        arguments = raw.get("args") or {}
        size = None
        facts: dict[str, Any] | None = None
        if is_communication(name):
            size = _size_bytes(arguments)
            facts = {key: arguments[key] for key in _COLLECTIVE_FACTS if key in arguments} or None
        elif category == "copy":
            size = _copied_bytes(arguments)
        elif category == "operation":
            facts = {
                key: self._shared(arguments[key]) for key in _OPERATION_FACTS if key in arguments
            } or None
        return TraceEvent(name, start_s, end_s, start_s, size, raw.get("tid"), None, facts)


def _microseconds(value: Any) -> float:
    """A whole number stays exact: some are larger than a float can hold."""
    return value if isinstance(value, int) else float(value)


def _launched(
    on_device: Sequence[tuple[str, object, TraceEvent]], launches: Mapping[int, TraceEvent]
) -> Iterator[tuple[str, TraceEvent]]:
    """What the GPU did, with the moment at which the host started it.

    Where the call is missing, it was made before the recording began, or it is not recorded: on a stream that
    happens in order, so it was not after the call of what ran before it.
    """
    first_s: dict[object, float] = {}  # by stream
    for _, correlation, event in on_device:
        if _call(launches, correlation) is not None:
            first_s[event.thread] = min(event.start_s, first_s.get(event.thread, math.inf))
    earliest_s = min(first_s.values(), default=0.0)
    for kind, correlation, event in on_device:
        call = _call(launches, correlation)
        if call is not None:
            yield kind, event._replace(started_s=call.start_s, launcher=call.thread)
        elif launches and event.start_s < first_s.get(event.thread, earliest_s):
            yield kind, event._replace(started_s=-math.inf)
        else:
            yield kind, event


def _call(launches: Mapping[int, TraceEvent], correlation: object) -> TraceEvent | None:
    return launches.get(correlation) if isinstance(correlation, int) else None


def _marks(annotations: Sequence[TraceEvent]) -> list[TraceEvent]:
    """The profiler's marks of steps, each once."""
    return [event for event in annotations if event.name.startswith(STEP)]


def _copied_bytes(arguments: dict[str, Any]) -> int | None:
    """Bytes of a copy to, from or on the GPU."""
    size = arguments.get("bytes")
    return int(size) if isinstance(size, int | float) and 0 <= size < _MOST_BYTES else None


def _size_bytes(arguments: dict[str, Any]) -> int | None:
    """Bytes of a transfer: from its tensor on gloo, from NCCL's own words on a GPU."""
    if "In msg nelems" in arguments:
        item = item_bytes(str(arguments.get("dtype", "")))
        count = arguments["In msg nelems"]
        known = item is not None and isinstance(count, int) and 0 <= count * item < _MOST_BYTES
        return int(count) * item if item is not None and known else None
    sizes, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    if not sizes or not kinds or not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    tensor_bytes = [
        _item_count(shape) * (item_bytes(str(kind)) or 0) for shape, kind in zip(sizes, kinds, strict=False)
    ]
    size = sum(tensor_bytes)
    return size if 0 < size < _MOST_BYTES else None


def _item_count(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors; what is not a tensor has none."""
    if not isinstance(shape, list):
        return 0
    tensors = shape if shape and isinstance(shape[0], list) else [shape]
    return sum(
        math.prod(extent for extent in tensor if isinstance(extent, int))
        for tensor in tensors
        if isinstance(tensor, list)
    )


def item_bytes(kind: str) -> int | None:
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
