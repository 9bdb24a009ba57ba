"""One rank's trace as facts: what its steps consist of, its exchanges, its operations, and what stands out.

It is the seam between reading a trace, which takes time and memory, and explaining the traces of a job:
small, plain values that processes hand over as JSON. No clock is compared with that of another rank.
"""

import dataclasses
import functools
import gc
import json
import math
import resource
import statistics
import sys
import typing
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.results.printable import printable
from scalescope.results.traces import step_parts
from scalescope.results.traces.collectives import Exchange, Group, exchanges, groups_of
from scalescope.results.traces.events import STEP, TraceFile
from scalescope.results.traces.intervals import Cover, Interval, common, merged, total, within, without
from scalescope.results.traces.operations import Chain, Loop, Operation, Operations
from scalescope.results.traces.rank_trace import DATA, HOST, QUEUED, TracedStep, TraceEvent, TraceTimeline
from scalescope.results.traces.step_trace import StepReader

COMPUTE_PARTS = ("forward_s", "backward_s", "optimizer_s", "other_s")
IDLE_PARTS = step_parts.IDLE
SUM_PARTS = ("compute_s", "exposed_s", "copies_s", *IDLE_PARTS)  # of a step, which they add up to
_COMPILING = ("dynamo_timed", "compile_fx", "CachingAutotuner", "convert_frame", "_compile.compile_inner")
_PAUSES = {
    "saving a checkpoint": ("torch/serialization.py", "save_file", "save_checkpoint", "torch.save"),
    "garbage collection": ("gc.collect", "built-in function collect"),
    "evaluation": ("): evaluate", "): validate", "validation", "#eval"),
    "compilation": _COMPILING,
}
_MOST_WAITS = 8
# Of the host, to record one event: what recorded jobs took longer than the same jobs without a profiler (2.0
# to 2.6 µs per operation, docs/measurements/2026-11-19-traces.md). A busier or older host takes longer.
_RECORDING_S = {"operation": 2e-6, "function": 0.5e-6}
_MOST_MEMORY = 8 << 30  # of address space, to read one file


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Something that the host did in one step for longer than in the others."""

    step: int
    name: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The trace of one rank, read."""

    file: str
    rank: int | None
    world_size: int | None
    device: str | None
    on_gpu: bool
    step_names: tuple[str, ...]  # the profiler's numbers; empty where the whole recording is one step
    steps: tuple[Mapping[str, float], ...]
    span: Mapping[str, float]
    groups: tuple[Group, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    operations: tuple[Operation, ...] = ()
    loops: tuple[Loop, ...] = ()
    chains: tuple[Chain, ...] = ()
    stops: tuple[Stop, ...] = ()
    waits: Mapping[str, float] = field(default_factory=dict)  # operations that wait for the GPU, per step
    facts: Mapping[str, float] = field(default_factory=dict)  # counts and times per step
    has_stacks: bool = False
    has_shapes: bool = False
    notes: tuple[str, ...] = ()

    def mean(self, part: str) -> float:
        """A part of a step, on average."""
        return statistics.fmean(step[part] for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RankTrace":
        """What another process of ours wrote."""
        return typing.cast("RankTrace", _typed(cls, values))


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON as a field's type has it."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return typing.cast(Any, kind)(**{name: _typed(hints[name], each) for name, each in value.items()})
    if typing.get_origin(kind) is tuple:
        return tuple(_typed(typing.get_args(kind)[0], each) for each in value)
    arguments = [each for each in typing.get_args(kind) if each is not type(None)]
    if len(arguments) == 1 and value is not None and typing.get_origin(arguments[0]) is tuple:
        return _typed(arguments[0], value)
    return value


def read_trace(path: Path) -> RankTrace:
    """The trace in a file; ValueError or OSError where it cannot be read or has no steps."""
    file = TraceFile(path)
    timeline = TraceTimeline(file)
    windows, host_steps = timeline.windows(), timeline.host_steps
    names: tuple[str, ...] = tuple(mark.name.removeprefix(STEP)[:20] for mark in timeline.marks)
    if not timeline.marks_steps_of_others:  # our own; the first one includes the start of the profiler
        windows, host_steps, names = windows[1:], host_steps[1:], tuple(map(str, range(1, len(windows))))
    labels = names if len(names) == len(windows) else ("",) * len(windows)
    kept = [each for each in zip(windows, host_steps, labels, strict=True) if each[0][1] > each[0][0]]
    if not kept:
        raise ValueError("it contains no work: no kernels, and no operations in a step")
    windows, host_steps = [window for window, _, _ in kept], [step for _, step, _ in kept]
    names = tuple(label for _, _, label in kept if label)
    reader = StepReader(timeline)
    operations = Operations(timeline, reader, windows)
    rank, world_size = _place(file.facts)
    notes = []
    if file.refused:
        notes.append(f"{file.refused} events without a usable time were left out")
    if not names:
        notes.append("it has no step markers, so the whole recording counts as one step")
    return RankTrace(
        file=printable(path.name),
        rank=rank,
        world_size=world_size,
        device=_device(file.facts),
        on_gpu=timeline.on_gpu,
        step_names=names,
        steps=tuple(_steps(timeline, reader, windows)),
        span=_span(timeline),
        groups=tuple(groups_of(file.facts, timeline.sent).values()),
        exchanges=tuple(exchanges(timeline.sent, timeline.annotations, timeline.compute, host_steps)),
        operations=tuple(operations.table()),
        loops=tuple(operations.loops()),
        chains=tuple(operations.chains()) if timeline.on_gpu else (),
        stops=tuple(_stops(timeline, windows)),
        waits=dict(Counter(reader.waits(windows)).most_common(_MOST_WAITS)),
        facts=_facts(timeline, reader, windows),
        has_stacks=operations.has_stacks,
        has_shapes=operations.has_shapes,
        notes=tuple(notes),
    )


def _place(facts: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The rank and the number of ranks, where the trace says so."""
    job = facts.get("distributedInfo")
    values = [job.get(name) if isinstance(job, dict) else None for name in ("rank", "world_size")]
    rank, ranks = (value if isinstance(value, int) and 0 <= value < 1 << 30 else None for value in values)
    return rank, ranks


def _device(facts: Mapping[str, Any]) -> str | None:
    devices = facts.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return printable(name)[:60] if isinstance(name, str) else None


def _steps(
    timeline: TraceTimeline, reader: StepReader, windows: Sequence[Interval]
) -> "list[dict[str, float]]":
    """Each step as parts that add up to it; communication and what is hidden of it beside them."""
    steps = []
    for window in windows:
        traced = timeline.step(window)
        parts = _gpu_parts(reader, window) if timeline.on_gpu else _cpu_parts(traced)
        steps.append(
            {
                "time_s": window[1] - window[0],
                "communication_s": traced.communication_s,
                "overlap_s": traced.overlap_s,
                **parts,
            }
        )
    return steps


def _gpu_parts(reader: StepReader, window: Interval) -> dict[str, float]:
    parts = reader.parts(window)
    phases = {
        "forward_s": parts[step_parts.FORWARD],
        "backward_s": parts[step_parts.BACKWARD],
        "optimizer_s": parts[step_parts.OPTIMIZER],
        "other_s": parts[step_parts.OTHER_KERNELS],
    }
    return {
        **phases,
        "compute_s": math.fsum(phases.values()),
        "exposed_s": parts[step_parts.COMMUNICATION],
        "copies_s": parts[step_parts.COPIES],
        **{name: parts[name] for name in IDLE_PARTS},
    }


def _cpu_parts(step: TracedStep) -> dict[str, float]:
    """On the CPU nothing is launched: what is between operations is the host's own time."""
    idle = {
        step_parts.IDLE_INPUT: step.idle_s[DATA],
        step_parts.IDLE_HOST: step.idle_s[HOST],
        step_parts.IDLE_QUEUED: step.idle_s[QUEUED],
    }
    return {
        **dict.fromkeys(COMPUTE_PARTS, 0.0),
        "other_s": step.compute_s,
        "compute_s": step.compute_s,
        "exposed_s": step.exposed_s,
        "copies_s": step.copy_s,
        **dict.fromkeys(IDLE_PARTS, 0.0),
        **idle,
    }


def _span(timeline: TraceTimeline) -> dict[str, float]:
    """The whole recording, from the first event of the device to the last."""
    events = timeline.everything
    if not events:
        return {}
    window = (events[0].start_s, max(event.end_s for event in events))
    compute = merged(event.interval for event in timeline.compute)
    sent = merged(event.interval for event in timeline.sent)
    copies = merged(event.interval for event in timeline.copies)
    overlap_s = total(common(compute, sent))
    busy = merged([*compute, *sent])
    copies_s = total(without(copies, busy))
    return {
        "time_s": window[1] - window[0],
        "compute_s": total(compute),
        "communication_s": total(sent),
        "overlap_s": overlap_s,
        "exposed_s": total(sent) - overlap_s,
        "copies_s": copies_s,
        "idle_s": window[1] - window[0] - total(busy) - copies_s,
    }


def _facts(timeline: TraceTimeline, reader: StepReader, windows: Sequence[Interval]) -> dict[str, float]:
    steps = len(windows)
    if not timeline.on_gpu:
        return {
            "recomputed_s": math.fsum(total(within(reader.recomputing, each)) for each in windows) / steps
        }
    low, high = windows[0][0], windows[-1][1]
    kernels = [event for event in timeline.compute if low <= event.start_s < high]
    lengths = [event.end_s - event.start_s for event in kernels]
    copies = [event for event in timeline.copies if low <= event.start_s < high]
    pageable = [event for event in copies if "pageable" in event.name.lower()]
    again = Cover(reader.recomputing)
    recomputed = [kernel.end_s - kernel.start_s for kernel in kernels if again.holds(kernel.started_s)]
    return {
        "kernels_per_step": len(kernels) / steps,
        "kernel_median_s": statistics.median(lengths) if lengths else 0.0,
        "pageable_copies_per_step": len(pageable) / steps,
        "recomputed_s": math.fsum(recomputed) / steps,
        "host_recomputing_s": total(reader.recomputing) / steps,
        "host_calls_per_step": _count(timeline.calls, low, high) / steps,
        "recording_s": (
            _RECORDING_S["operation"] * _count((*timeline.operations, *timeline.calls), low, high)
            + _RECORDING_S["function"] * _count(timeline.functions, low, high)
        )
        / steps,
        "launch_lead_s": _lead_s(kernels),
    }


def _count(events: Iterable[TraceEvent], low: float, high: float) -> int:
    return sum(low <= event.start_s < high for event in events)


def _lead_s(kernels: Sequence[TraceEvent]) -> float:
    """How long kernels wait for their turn, in the median: near zero where the host is the limit."""
    waits = [event.start_s - event.started_s for event in kernels if math.isfinite(event.started_s)]
    return max(0.0, statistics.median(waits)) if waits else 0.0


def _stops(timeline: TraceTimeline, windows: Sequence[Interval]) -> list[Stop]:
    """What the host did in single steps: compilation, checkpoints, garbage collection, evaluation."""
    events: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in (*timeline.annotations, *timeline.functions, *timeline.operations):
        kind = _kind_of_pause(event.name)
        if kind is not None:
            events[kind].append(event)
    covers = {kind: Cover(event.interval for event in named) for kind, named in events.items()}
    times = (
        Stop(step=number, name=kind, time_s=covers[kind].seconds(*window))
        for number, window in enumerate(windows)
        for kind in _PAUSES
        if kind in covers
    )
    return [stop for stop in times if stop.time_s > 0.0]


@functools.lru_cache(maxsize=65536)
def _kind_of_pause(name: str) -> str | None:
    if name.endswith("): evaluate_expr"):  # of torch itself
        return None
    return next((kind for kind, parts in _PAUSES.items() if any(part in name for part in parts)), None)


def main(arguments: Sequence[str]) -> int:
    """Read one trace and print it as JSON, in a process of its own: a hostile file ends no other reading."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    gc.disable()  # millions of events without a cycle
    try:
        answer: dict[str, Any] = {"trace": read_trace(Path(arguments[0])).to_json()}
    except OSError as error:
        answer = {"refused": error.strerror or str(error)}
    except MemoryError:
        answer = {"refused": f"it needs more than {_MOST_MEMORY >> 30} GiB of memory"}
    except ValueError as error:
        answer = {"refused": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
