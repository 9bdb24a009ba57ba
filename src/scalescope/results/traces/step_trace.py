"""Reads what a rank's steps on a GPU consist of: parts that add up, kernels, waits and calls of the host."""

import bisect
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalescope.results.traces import step_parts
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, OPTIMIZER
from scalescope.results.traces.intervals import (
    Cover,
    Interval,
    Overlapping,
    common,
    merged,
    total,
    within,
    without,
)
from scalescope.results.traces.names import (
    allocates,
    is_convolution,
    is_elementwise,
    is_layout,
    is_product,
    releases,
    uses_matrix_units,
    waits_for_gpu,
)
from scalescope.results.traces.products import CountedProducts, Launched, ProductTime, model_flops
from scalescope.results.traces.rank_trace import BACKWARD_OPERATION, TraceEvent, TraceTimeline, covers
from scalescope.results.traces.recomputation import recomputations
from scalescope.results.traces.replay import CallKind, CallPart, HostCall, LaunchDelays

_PHASES = {FORWARD: step_parts.FORWARD, BACKWARD: step_parts.BACKWARD, OPTIMIZER: step_parts.OPTIMIZER}
_PHASES[CLEAR] = step_parts.OPTIMIZER
_COMPUTE_PARTS = (
    step_parts.FORWARD, step_parts.BACKWARD, step_parts.OPTIMIZER, step_parts.OTHER_KERNELS
)  # fmt: skip
_OPTIMIZER = re.compile(r"^Optimizer\.step#|^#* ?optimizer ?#*$", re.IGNORECASE)
_LATENCY_S = 20e-6  # at most, from a launch to the start of its kernel on an idle GPU
_BLOCKED = 3.0  # times the usual call: beyond that a launch waits for room in the queue
_COMPUTE, _COMMUNICATION = "compute", "communication"
_COMPILED = ("CompiledFunctionBackward", "Torch-Compiled Region")
_MOST_PRODUCTS = 20
_NEAREST = 200  # operations that are looked through for the one around a call


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """The recorded steps of a rank: per step in seconds, and counts per step."""

    parts: dict[str, list[float]]  # by name, each step; together with STEP
    counters: dict[str, float]
    waits: dict[str, float]  # operations that wait for the GPU outside input, and how often per step
    calls: list[HostCall]
    delays: LaunchDelays
    products: list[ProductTime] = field(default_factory=list)  # matrix products, the longest first

    @property
    def steps(self) -> int:
        return len(self.parts[step_parts.STEP])


def read_steps(events: Sequence[dict[str, Any]]) -> StepTrace:
    """The steps of a trace; the first one includes the start of the profiler and is left out."""
    timeline = TraceTimeline(events, on_gpu=True)
    windows = timeline.windows()[1:]
    reader = StepReader(timeline)
    parts: dict[str, list[float]] = defaultdict(list)
    for window in windows:
        for name, time_s in reader.parts(window).items():
            parts[name].append(time_s)
    parts.setdefault(step_parts.STEP, [])
    waits = reader.waits(windows)
    return StepTrace(
        parts=dict(parts),
        counters=reader.counters(windows) if windows else {},
        waits=waits,
        calls=reader.host_calls(),
        delays=reader.delays(windows),
        products=reader.longest_products(),
    )


class Phases:
    """In which part of a step the host was at each moment.

    Our own ranges tell. In traces of others the optimizer has torch's own annotation, the nodes of the graph
    are backward, and what comes before them in a step is forward.
    """

    def __init__(self, timeline: TraceTimeline) -> None:
        self._ranges = [event for event in timeline.ranges if event.name in _PHASES]
        self._begins = [event.start_s for event in self._ranges]
        if self._ranges:
            return
        self._optimizer = merged(e.interval for e in timeline.annotations if _OPTIMIZER.search(e.name))
        nodes = (e for e in timeline.operations if e.name.startswith(BACKWARD_OPERATION))
        self._backward = merged(event.interval for event in nodes)
        self._steps = timeline.host_steps
        self._step_begins = [low for low, _ in self._steps]
        starts = [start for start, _ in self._backward]
        first = (bisect.bisect_left(starts, low) for low in self._step_begins)
        self._first_backward = [starts[index] if index < len(starts) else None for index in first]

    def at(self, moment: float) -> str:
        """The innermost range, as they follow each other."""
        if self._ranges:
            index = bisect.bisect_right(self._begins, moment) - 1
            inside = index >= 0 and moment <= self._ranges[index].end_s
            return _PHASES[self._ranges[index].name] if inside else step_parts.OTHER_KERNELS
        if covers(self._optimizer, moment):
            return step_parts.OPTIMIZER
        if covers(self._backward, moment):
            return step_parts.BACKWARD
        index = bisect.bisect_right(self._step_begins, moment) - 1
        if index < 0 or self._first_backward[index] is None:
            return step_parts.OTHER_KERNELS
        before = moment < (self._first_backward[index] or 0.0) < self._steps[index][1]
        return step_parts.FORWARD if before else step_parts.OTHER_KERNELS


class StepReader:
    """A timeline, and in which part of a step the host was at each moment."""

    def __init__(self, timeline: TraceTimeline) -> None:
        self._timeline = timeline
        self._phase = Phases(timeline).at
        self._compute = Overlapping(timeline.compute)
        self._sent = Overlapping(timeline.sent)
        self._copies = Overlapping(timeline.copies)
        self._waiting = Cover(timeline.waiting)
        waits = (call for call in timeline.calls if self._kind(call) == "wait")
        self._waits = sorted(waits, key=lambda call: call.end_s)
        self.phases = {id(event): self._phase(event.started_s) for event in timeline.compute}
        self._host_waits = sorted(call.interval for call in timeline.calls if waits_for_gpu(call.name))
        self._device_ends = sorted(event.end_s for event in timeline.everything)
        self._operations = sorted(timeline.operations, key=lambda event: event.start_s)
        self._operation_begins = [operation.start_s for operation in self._operations]
        self.recomputing = recomputations(self._operations)

    def parts(self, window: Interval) -> dict[str, float]:
        """Each instant of a window counts once: for a kernel, else for a transfer, else for a copy, else for
        the reason why the GPU was idle."""
        inside = self._compute.within(window)
        taken: list[Interval] = []
        times: dict[str, float] = {}
        for part in _COMPUTE_PARTS:
            kernels = within((e.interval for e in inside if self.phases[id(e)] == part), window)
            times[part] = total(without(kernels, taken))
            taken = merged([*taken, *kernels])
        for part, events in ((step_parts.COMMUNICATION, self._sent), (step_parts.COPIES, self._copies)):
            intervals = within((event.interval for event in events.within(window)), window)
            times[part] = total(without(intervals, taken))
            taken = merged([*taken, *intervals])
        times |= dict.fromkeys(step_parts.IDLE, 0.0)
        for gap in without([window], taken):
            for part, time_s in self.idle(gap).items():
                times[part] += time_s
        times[step_parts.STEP] = window[1] - window[0]
        return times

    def idle(self, gap: Interval) -> dict[str, float]:
        """Why the GPU was idle: before the host launched what ended the gap, because of what the host did;
        then because a launch takes its time, or because something held it back."""
        empty, queued = self._timeline.split_by_start([gap])
        if not empty:
            between = total(queued) <= _LATENCY_S
            return {step_parts.IDLE_BETWEEN if between else step_parts.IDLE_QUEUED: total(queued)}
        input_s = sum(self._waiting.seconds(*each) for each in empty)
        cause = step_parts.IDLE_SYNC if self._follows_wait(gap) else step_parts.IDLE_HOST
        latency_s = min(total(queued), _LATENCY_S)
        return {
            step_parts.IDLE_INPUT: input_s,
            cause: total(empty) - input_s + latency_s,
            step_parts.IDLE_QUEUED: total(queued) - latency_s,
        }

    def _follows_wait(self, gap: Interval) -> bool:
        """Whether the host was waiting for the GPU when the GPU ran out of work."""
        index = bisect.bisect_right(self._host_waits, (gap[0], float("inf"))) - 1
        return index >= 0 and self._host_waits[index][1] >= gap[0]

    def waits(self, windows: Sequence[Interval]) -> dict[str, float]:
        """The operations around calls that wait for the GPU, or the calls themselves, per step in the median:
        a checkpoint waits in one step only."""
        counts = [self._waits_in(window) for window in windows]
        names = {name for counted in counts for name in counted}
        per_step = {name: statistics.median(counted[name] for counted in counts) for name in names}
        return {name: count for name, count in per_step.items() if count > 0.0}

    def _waits_in(self, window: Interval) -> Counter[str]:
        low, high = (bisect.bisect_left(self._waits, moment, key=_end) for moment in window)
        return Counter(self._operation_around(call) for call in self._waits[low:high])

    def _operation_around(self, call: TraceEvent) -> str:
        """The innermost operation of torch on the same thread that made the call."""
        last = bisect.bisect_right(self._operation_begins, call.start_s) - 1
        for index in range(last, max(-1, last - _NEAREST), -1):
            operation = self._operations[index]
            if operation.thread == call.thread and operation.end_s >= call.end_s:
                return operation.name
        return call.name

    def counters(self, windows: Sequence[Interval]) -> dict[str, float]:
        """Facts about kernels, copies and memory, per step."""
        steps, (low, high) = len(windows), (windows[0][0], windows[-1][1])
        kernels = [event for event in self._timeline.compute if low <= event.start_s < high]
        kernels.sort(key=lambda event: event.start_s)
        optimizer = [event for event in kernels if self.phases[id(event)] == step_parts.OPTIMIZER]
        model = [event for event in kernels if self.phases[id(event)] != step_parts.OPTIMIZER]
        elementwise = [event for event in model if is_elementwise(event.name)]
        copies = [event for event in self._timeline.copies if low <= event.start_s < high]
        pageable = [event for event in copies if "pageable" in event.name.lower()]
        # Per step in the median: a checkpoint copies as much in one step as all others together.
        by_step = [[event for event in pageable if low <= event.start_s < high] for low, high in windows]
        calls = [call for call in self._timeline.calls if low <= call.start_s < high]
        facts = {
            "kernels_per_step": len(kernels) / steps,
            "matrix_product_s": _seconds(model, is_product) / steps,
            "matrix_unit_s": _seconds(model, uses_matrix_units) / steps,
            "convolution_s": _seconds(model, is_convolution) / steps,
            "layout_s": _seconds(model, is_layout) / steps,
            "elementwise_s": _seconds(elementwise) / steps,
            "elementwise_kernels": len(elementwise) / steps,
            "optimizer_kernels": len(optimizer) / steps,
            "recomputed_s": _seconds(e for e in kernels if covers(self.recomputing, e.started_s)) / steps,
            "pageable_copies": statistics.median(map(len, by_step)),
            "pageable_s": statistics.median(map(_seconds, by_step)),
            "pageable_bytes": statistics.median(sum(e.size_bytes or 0 for e in copied) for copied in by_step),
            "allocations_per_step": sum(allocates(call.name) for call in calls) / steps,
            "busy_waits_s": self._busy_waits_s(calls) / steps,
            "releases_per_step": sum(releases(call.name) for call in calls) / steps,
        }
        if kernels:
            facts["kernel_median_s"] = statistics.median(event.end_s - event.start_s for event in kernels)
        return facts | self._flops()

    def _counted_products(self) -> tuple[CountedProducts, int] | None:
        """The products of the recorded steps, and the number of these steps; None without shapes."""
        ends = [event.end_s for event in self._timeline.ranges if event.name == CLEAR]
        if len(ends) < 2:
            return None
        low, high = ends[0], ends[-1]
        products = [product for product in self._timeline.products if low <= product.start_s < high]
        if not products:
            return None
        launched = (
            Launched(
                name=event.name,
                time_s=event.end_s - event.start_s,
                thread=event.launcher,
                launched_s=event.started_s,
            )
            for event in self._timeline.compute
            if low <= event.started_s < high
        )
        return CountedProducts(products, launched), len(ends) - 1

    def longest_products(self) -> list[ProductTime]:
        """The matrix products with the most time on the GPU."""
        known = self._counted_products()
        return [] if known is None else known[0].longest(known[1], _MOST_PRODUCTS)

    def _flops(self) -> dict[str, float]:
        """Floating-point operations of the products per step; nothing where the trace has no shapes."""
        known = self._counted_products()
        if known is None:
            return {}
        counted, steps = known
        needed: dict[str, float] = defaultdict(float)
        for product in counted:
            if not covers(self.recomputing, product.start_s):
                needed[self._phase(product.start_s)] += product.flops.model
        needed.pop(step_parts.OPTIMIZER, None)  # is not the model
        backward = needed.pop(step_parts.BACKWARD, 0.0)
        by_format = counted.by_format()
        is_compiled = any(operation.name.startswith(_COMPILED) for operation in self._operations)
        return {
            "model_flops": model_flops(sum(needed.values()), backward, is_compiled=is_compiled) / steps,
            "device_flops": sum(by_format.values()) / steps,
            "unlinked_product_s": counted.unlinked_s / steps,
            "linked_product_s": counted.linked_s / steps,
            **{f"device_flops/{name}": count / steps for name, count in by_format.items()},
        }

    def _busy_waits_s(self, calls: Sequence[TraceEvent]) -> float:
        """How long the host waited, outside input, while the GPU was busy."""
        waits = [call.interval for call in calls if self._kind(call) == "wait"]
        return total(common(waits, merged(event.interval for event in self._timeline.everything)))

    def delays(self, windows: Sequence[Interval]) -> LaunchDelays:
        """The GPU's own pauses: before a kernel on an idle GPU, and between kernels in its queue."""
        if not windows:
            return LaunchDelays()
        ended = {call.start_s: call.end_s for call in self._timeline.calls}
        latencies, pauses = [], []
        ordered = [event for event in self._timeline.everything if windows[0][0] <= event.start_s]
        for before, event in itertools.pairwise(ordered):
            launched_s = ended.get(event.started_s, event.started_s)
            if launched_s > before.end_s:
                latencies.append(max(0.0, event.start_s - launched_s))
            elif before.end_s < event.start_s <= before.end_s + _LATENCY_S:
                pauses.append(event.start_s - before.end_s)
        return LaunchDelays(
            latency_s=statistics.median(latencies) if latencies else LaunchDelays().latency_s,
            pause_s=statistics.median(pauses) if pauses else 0.0,
        )

    def host_calls(self) -> list[HostCall]:
        """The host's calls in order, with what the GPU did for each."""
        timeline = self._timeline
        ends = [event.end_s for event in timeline.ranges if event.name == CLEAR]
        if len(ends) < 2:
            return []
        low, high = ends[0], ends[-1]
        launched: dict[float, list[TraceEvent]] = defaultdict(list)
        for event in timeline.everything:
            launched[event.started_s].append(event)
        sent = {id(event) for event in timeline.sent}
        ordered = sorted(
            (call for call in timeline.calls if low <= call.start_s < high), key=lambda call: call.start_s
        )
        usual_s = statistics.median(call.end_s - call.start_s for call in ordered) if ordered else 0.0
        recomputing = Cover(self.recomputing)
        calls: list[HostCall] = []
        before_end = low
        for call in ordered:
            work = launched.get(call.start_s, [])
            is_sent = any(id(event) in sent for event in work)
            gap = (before_end, max(before_end, call.start_s))
            waited_s = self._waiting.seconds(*gap)
            kind, part = self._kind(call), self._part(call)
            again_s = 0.0 if part == "recomputation" else recomputing.seconds(*gap)
            step = bisect.bisect_right(ends, call.start_s)
            if again_s > 0.0:
                calls.append(_pause(again_s, step))
            calls.append(
                HostCall(
                    kind=kind,
                    before_s=max(0.0, gap[1] - gap[0] - waited_s - again_s),
                    waited_input_s=waited_s,
                    call_s=self._call_s(call, kind, _BLOCKED * usual_s),
                    kernel_s=_seconds(work),
                    stream=_COMMUNICATION if is_sent else _COMPUTE,
                    follows=self._dependencies(call, is_sent=is_sent),
                    step=step,
                    part=part,
                )
            )
            before_end = max(before_end, call.end_s)
        return calls

    def _call_s(self, call: TraceEvent, kind: CallKind, most_s: float) -> float:
        """What a call itself takes: of a wait, how long it lasts after the GPU has done everything."""
        if kind == "launch":
            return min(call.end_s - call.start_s, most_s)
        index = bisect.bisect_right(self._device_ends, call.end_s) - 1
        done_s = self._device_ends[index] if index >= 0 else call.start_s
        return call.end_s - max(call.start_s, done_s)

    def _kind(self, call: TraceEvent) -> CallKind:
        if waits_for_gpu(call.name):
            return "input_wait" if covers(self._timeline.waiting, call.start_s) else "wait"
        return "allocation" if allocates(call.name) or releases(call.name) else "launch"

    def _part(self, call: TraceEvent) -> CallPart:
        if covers(self.recomputing, call.start_s):
            return "recomputation"
        return "optimizer" if self._phase(call.start_s) == step_parts.OPTIMIZER else "model"

    def _dependencies(self, call: TraceEvent, *, is_sent: bool) -> tuple[str, ...]:
        """Transfers follow on the compute that made them, and the optimizer on all transfers."""
        if is_sent:
            return (_COMPUTE,)
        return (_COMMUNICATION,) if self._phase(call.start_s) == step_parts.OPTIMIZER else ()


def _end(event: TraceEvent) -> float:
    return event.end_s


def _pause(time_s: float, step: int) -> HostCall:
    """The host's time in recomputation after its last call."""
    return HostCall(
        kind="launch", before_s=time_s, waited_input_s=0.0, call_s=0.0, step=step, part="recomputation"
    )


def _seconds(events: Iterable[TraceEvent], matches: Any = None) -> float:
    return sum(event.end_s - event.start_s for event in events if matches is None or matches(event.name))
