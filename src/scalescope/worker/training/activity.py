"""What the host does beside training steps: garbage collection, compilation, the allocator's retries."""

import contextlib
import gc
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import scalescope
from scalescope import clocks
from scalescope.worker.process.position import Position
from scalescope.worker.training.batch_work import by_step, work_counters, work_samples
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import StepWindow

# ---- The caching allocator of a GPU: how often it had to ask the driver while timed steps ran


# Counts since the process began.
_EVENTS = {
    "retries": "num_alloc_retries",
    "device_allocations": "num_device_alloc",
    "device_releases": "num_device_free",
    "out_of_memory": "num_ooms",
}
_BYTES = {
    "reserved_bytes": "reserved_bytes.all.current",
    "allocated_bytes": "allocated_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
}


class AllocatorWatch:
    """Compares the allocator's statistics before and after timed steps; on the CPU there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: dict[str, int] = {}
        self._after: dict[str, int] = {}
        self._events: dict[str, int] = {}

    def begin(self) -> None:
        self._before = self._statistics()

    def end(self) -> None:
        self._after = self._statistics()
        for name, key in _EVENTS.items():
            if key in self._before and key in self._after:
                count = self._after[key] - self._before[key]
                self._events[name] = self._events.get(name, 0) + count

    def _statistics(self) -> dict[str, int]:
        return dict(torch.cuda.memory_stats(self._device)) if self._device.type == "cuda" else {}

    def counters(self) -> dict[str, float | int | str | None]:
        """What other allocators do not count is left out."""
        held = {name: int(self._after[key]) for name, key in _BYTES.items() if key in self._after}
        return {f"allocator/{name}": value for name, value in {**self._events, **held}.items()}


# ---- Pauses of Python's garbage collector, counted by its own callbacks


class GarbageWatch:
    """Counts collections between `begin` and `end`, and adds their pauses up by step."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._began: float | None = None
        self._collections: Counter[int] = Counter()
        self._longest_s = 0.0
        self._by_step_s: defaultdict[int, float] = defaultdict(float)

    def begin(self) -> None:
        self._began = None
        gc.callbacks.append(self._note)

    def end(self) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = clocks.perf_counter()
        elif self._began is not None:
            pause_s = clocks.perf_counter() - self._began
            self._began = None
            self._collections[info["generation"]] += 1
            self._longest_s = max(self._longest_s, pause_s)
            self._by_step_s[self._position.begun] += pause_s

    def pause_s(self, step: int) -> float:
        """In one step, by its number from 1 over all steps of the rank."""
        return self._by_step_s.get(step, 0.0)

    def counters(self) -> dict[str, float | int | str | None]:
        """Seconds in all collections, their number by generation, and the longest."""
        return {
            "gc/pause_s": math.fsum(self._by_step_s.values()),
            "gc/longest_s": self._longest_s,
            "gc/enabled": int(gc.isenabled()),
            **{f"gc/collections_{generation}": self._collections[generation] for generation in range(3)},
        }


# ---- What torch.compile did: graph breaks, compilations and why they were repeated. Only this module
# knows where torch keeps that, which is private to it: what it does not find is unknown


GRAPH_BREAKS = "graph_breaks"
RECOMPILATIONS = "recompilations"
_UTILS = "torch._dynamo.utils"
_MOST_KEPT = 4096  # compilations; torch keeps 64 otherwise
_MOST_ROWS = 32
_LONGEST_REASON = 200
_NOT_THE_USERS = tuple(str(Path(package.__path__[0])) for package in (torch, scalescope))

Row = dict[str, float | int | str | None]
Interval = tuple[float, float]


class CompilationWatch:
    """Reads what torch compiled since it was made, and tells what of it fell between `begin` and `end`."""

    def __init__(self) -> None:
        self._made_s = clocks.time()
        self._windows: list[Interval] = []
        self._breaks_before = self._breaks_made = len(_breaks())
        self._breaks_inside = 0
        self._began_s = 0.0

    def begin(self) -> None:
        _keep_all_compilations()
        self._breaks_made = len(_breaks())
        self._began_s = clocks.time()

    def end(self) -> None:
        self._windows.append((self._began_s, clocks.time()))
        self._breaks_inside += len(_breaks()) - self._breaks_made

    def counters(self) -> dict[str, float | int | str | None]:
        """Empty where nothing was compiled."""
        with contextlib.suppress(Exception):  # private to torch
            return self._counters()
        return {}

    def tables(self) -> dict[str, list[Row]]:
        """Graph breaks by their line, and compilations that were repeated."""
        with contextlib.suppress(Exception):  # private to torch
            if self._compilations():
                return {GRAPH_BREAKS: self._graph_breaks(), RECOMPILATIONS: self._recompilations()}
        return {}

    def _counters(self) -> dict[str, float | int | str | None]:
        compilations = self._compilations()
        if not compilations:
            return {}
        inside = [entry for entry in compilations if self._is_inside(entry)]
        repeated = [entry for entry in compilations if _is_repeated(entry)]
        repeated_inside = [entry for entry in inside if _is_repeated(entry)]
        breaks = len(_breaks()) - self._breaks_before
        return {
            "compile/compilations_before": len(compilations) - len(inside),
            "compile/compilations_inside": len(inside),
            "compile/recompilations_before": len(repeated) - len(repeated_inside),
            "compile/recompilations_inside": len(repeated_inside),
            "compile/given_up": sum(bool(getattr(entry, "fail_type", None)) for entry in repeated),
            "compile/graph_breaks_before": breaks - self._breaks_inside,
            "compile/graph_breaks_inside": self._breaks_inside,
            "compile/inside_s": _covered_s([_interval(entry) for entry in inside]),
        }

    def _compilations(self) -> list[Any]:
        utils = _utils()
        entries = [] if utils is None else utils.get_compilation_metrics()
        return [entry for entry in entries if _interval(entry)[0] >= self._made_s]

    def _is_inside(self, entry: Any) -> bool:
        began_s, _ = _interval(entry)
        return any(begin <= began_s <= end for begin, end in self._windows)

    def _graph_breaks(self) -> list[Row]:
        sites = Counter(map(_site, _breaks()[self._breaks_before :]))
        return [
            {"reason": reason, "file": file, "line": line, "function": function, "count": count}
            for (reason, file, line, function), count in sites.most_common(_MOST_ROWS)
        ]

    def _recompilations(self) -> list[Row]:
        """The longest."""
        repeated = [entry for entry in self._compilations() if _is_repeated(entry)]
        longest = sorted(repeated, key=_duration_s, reverse=True)[:_MOST_ROWS]
        return [
            {
                "reason": _first_line(getattr(entry, "recompile_reason", None)),
                "function": str(entry.co_name or ""),
                "file": str(entry.co_filename or ""),
                "line": int(entry.co_firstlineno or 0),
                "in_window": int(self._is_inside(entry)),
                "time_s": _duration_s(entry),
            }
            for entry in longest
        ]


def _utils() -> ModuleType | None:
    """Where torch keeps these facts; None as long as nothing has loaded the compiler."""
    return sys.modules.get(_UTILS)


def _breaks() -> Sequence[Any]:
    """Every graph break so far, in the order in which torch met them."""
    return getattr(_utils(), "graph_break_reasons", None) or ()


def _keep_all_compilations() -> None:
    with contextlib.suppress(Exception):  # private to torch
        if (utils := _utils()) is not None:
            utils.set_compilation_metrics_limit(_MOST_KEPT)


def _interval(entry: Any) -> Interval:
    """When a compilation began and ended, in seconds since 1970."""
    return entry.start_time_us / 1e6, (entry.end_time_us or entry.start_time_us) / 1e6


def _duration_s(entry: Any) -> float:
    began_s, ended_s = _interval(entry)
    return ended_s - began_s


def _is_repeated(entry: Any) -> bool:
    """Whether the function had been compiled before, for other arguments."""
    return bool(getattr(entry, "recompile_reason", None) or getattr(entry, "cache_size", None))


def _covered_s(intervals: Iterable[Interval]) -> float:
    """The time in any of the intervals: a compilation may contain another."""
    total_s, until_s = 0.0, 0.0
    for began_s, ended_s in sorted(intervals):
        total_s += max(0.0, ended_s - max(began_s, until_s))
        until_s = max(until_s, ended_s)
    return total_s


def _site(entry: Any) -> tuple[str, str, int, str]:
    """The reason of a graph break, and the innermost line outside torch and scalescope, if there is any."""
    frames = [frame for frame in entry.user_stack if not frame.filename.startswith(_NOT_THE_USERS)]
    if not frames:
        return _first_line(entry.reason), "", 0, ""
    innermost = frames[-1]
    return _first_line(entry.reason), innermost.filename, int(innermost.lineno or 0), innermost.name


def _first_line(text: object) -> str:
    lines = str(text or "").strip().splitlines()
    return lines[0][:_LONGEST_REASON] if lines else ""


# ---- The activity of a rank beside its steps: what batches held, and where the host was in long steps


LONG_STEPS = "long_steps"
_LONG = 1.1  # times the median
_MOST_LONG_STEPS = 100
_DIGITS = 6  # microseconds


def store_activity(
    measurements: Measurements, window: StepWindow, first_step: int, garbage: GarbageWatch
) -> None:
    """Store what was noted of the timed steps; `first_step` is the number of the first, from 1 over all."""
    work = by_step(window.batch_work)
    measurements.counters |= work_counters(work)
    measurements.samples |= work_samples(work)
    times_s = measurements.samples["step_time_s"]
    pauses_s = [garbage.pause_s(first_step + step) for step in range(len(times_s))]
    measurements.tables[LONG_STEPS] = _long_steps(times_s, window, pauses_s)


def _long_steps(
    times_s: Sequence[float], window: StepWindow, pauses_s: Sequence[float]
) -> list[dict[str, float | int | str | None]]:
    """Where the host was in steps that took far longer than usual: seconds beyond the median of each.

    `step` counts measured steps from 0.
    """
    host_s = _differences(window.host_marks_s)
    usual_s = statistics.median(times_s)
    usual_parts_s = [statistics.median(part) for part in zip(*host_s, strict=True)]
    long = [step for step, time_s in enumerate(times_s) if time_s > _LONG * usual_s]
    longest = sorted(long, key=lambda step: times_s[step], reverse=True)[:_MOST_LONG_STEPS]
    rows: list[dict[str, float | int | str | None]] = []
    for step in sorted(longest):
        beyond = zip(window.host_s, host_s[step], usual_parts_s, strict=True)
        rows.append(
            {
                "step": step,
                "beyond_s": round(times_s[step] - usual_s, _DIGITS),
                **{
                    f"{part}_beyond_s": round(part_s - part_usual_s, _DIGITS)
                    for part, part_s, part_usual_s in beyond
                },
                "gc_s": round(pauses_s[step], _DIGITS),
            }
        )
    return rows


def _differences(marks_s: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The host's time by part in each step, from the sums after each."""
    before = (*([0.0] * len(mark) for mark in marks_s[:1]), *marks_s)
    return [
        tuple(now - earlier for now, earlier in zip(mark, previous, strict=True))
        for mark, previous in zip(marks_s, before, strict=False)
    ]
