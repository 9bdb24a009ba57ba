"""Lines of the user's code that wait for the GPU, and how long the host spends on them."""

import linecache
import math
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import scalescope
from scalescope import clocks
from scalescope.catalog.benchmarks.arrivals import LEAST_STEPS, MOST_STEPS
from scalescope.results.traces.rank_trace import read_rank
from scalescope.results.traces.summary import summary_of
from scalescope.worker.training.measurements import Measurements

# ---- How long the host spends on given lines of code, in steps that are not timed otherwise


Line = tuple[str, int]  # a file and the number of a line


class LineTimes:
    """Seconds on each line, by the interpreter's own trace events of the functions that hold them."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.times_s = dict.fromkeys(lines, 0.0)
        self._files = {file for file, _ in self.times_s}
        self._begun: dict[FrameType, tuple[Line, float]] = {}
        self._holding: dict[CodeType, bool] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a function that is called, if it holds one of the lines."""
        return self._step if self._holds_line(frame.f_code) else None

    def follow_running(self, frame: FrameType | None) -> Callable[[], None]:
        """Follow functions that were called already: the loop of a script is one. Returns what ends that."""
        followed = []
        while frame is not None:
            if self._holds_line(frame.f_code):
                followed.append((frame, frame.f_trace))
                frame.f_trace = self._step
            frame = frame.f_back

        def end() -> None:
            for running, before in followed:
                running.f_trace = before

        return end

    def _holds_line(self, code: CodeType) -> bool:
        if code not in self._holding:
            self._holding[code] = code.co_filename in self._files and any(
                (code.co_filename, line) in self.times_s for _, _, line in code.co_lines() if line
            )
        return self._holding[code]

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception":
            return self._step
        now = clocks.perf_counter()
        line, began = self._begun.pop(frame, (None, now))
        if line is not None:
            self.times_s[line] += now - began
        entered = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and entered in self.times_s:
            self._begun[frame] = (entered, clocks.perf_counter())
        return self._step


@contextmanager
def timed_lines(lines: Iterable[Line]) -> Iterator[dict[Line, float]]:
    """Times the lines inside the block, on this thread."""
    timer = LineTimes(lines)
    before = sys.gettrace()
    sys.settrace(timer.enter if timer.times_s else before)
    end = timer.follow_running(sys._getframe())
    try:
        yield timer.times_s
    finally:
        end()
        sys.settrace(before)


# ---- Locates the lines of code at which the host waits for the GPU, by torch's own warnings


_LONGEST_CODE = 200
_MOST_SITES = 20
_TORCH = Path(torch.__file__).parent
_SCALESCOPE = Path(scalescope.__file__).parent
_ATTACHED = _SCALESCOPE / "worker" / "hooks"  # stands between a script and torch, and does not wait itself
_WARNINGS = Path(warnings.__file__)


@dataclass(kw_only=True)
class Synchronizations:
    """Waits for the GPU by the line of code that makes them."""

    sites: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # (file, line, function)
    can_locate: bool = False  # whether torch reports waits at all
    times_s: Mapping[Line, float] = field(default_factory=dict)  # of the host, all steps together

    def add(self, frames: traceback.StackSummary) -> None:
        """Count a wait for the innermost frame outside torch and outside the code that measures."""
        passing = (_TORCH, _ATTACHED, _WARNINGS)
        outside = [f for f in frames if not any(_is_inside(f.filename, folder) for folder in passing)]
        users = [frame for frame in outside if not _is_inside(frame.filename, _SCALESCOPE)]
        if not outside or not users or _is_inside(outside[-1].filename, _SCALESCOPE):
            return  # the measuring code itself: it copies batches
        frame = users[-1]
        self.sites[(frame.filename, frame.lineno or 0, frame.name)] += 1

    @property
    def lines(self) -> set[Line]:
        return {(file, line) for file, line, _ in self.sites}

    def rows(self, steps: int) -> list[dict[str, float | int | str | None]]:
        """The lines with their waits per step, the most frequent first."""
        return [
            {
                "file": _shown_path(file),
                "line": line,
                "function": function,
                "code": linecache.getline(file, line).strip()[:_LONGEST_CODE],
                "operation": "",
                "per_step": count / steps,
                "time_s": self.times_s[(file, line)] / steps if (file, line) in self.times_s else None,
                "from_trace": False,
            }
            for (file, line, function), count in self.sites.most_common(_MOST_SITES)
        ]


def _is_inside(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder)


def _shown_path(file: str) -> str:
    """Relative to the working folder where it is inside."""
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def located_synchronizations(device: torch.device) -> Iterator[Synchronizations]:
    """Collects waits for the GPU inside the block."""
    waits = Synchronizations()
    before = torch.cuda.get_sync_debug_mode()
    probe = torch.ones(1, device=device)
    texts: set[str] = set()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if not waits.can_locate:
            texts.add(str(message))
        elif str(message) in texts:
            waits.add(traceback.extract_stack(sys._getframe(1)))

    with _every_warning_to(note):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            probe.item()  # a wait that is known, to learn what such a warning says
            waits.can_locate = bool(texts)
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _every_warning_to(note: Callable[..., None]) -> Iterator[None]:
    """Calls `note` for each warning, however often the same line makes it."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield


# ---- What a rank stores of recorded steps, to show which rank waited for which


_WINDOW_S = 1.5  # where a launch counts its steps


def recorded_count(window_s: float | None, step_s: float) -> int:
    """Steps to record, equal on all ranks; the first pays for the profiler's start and is not read."""
    wanted = math.ceil((window_s or _WINDOW_S) / max(step_s, 1e-9))
    return 1 + max(LEAST_STEPS, min(MOST_STEPS, wanted))


def store_arrivals(measurements: Measurements, events: Sequence[dict[str, Any]], *, on_gpu: bool) -> None:
    """The summary of the recorded steps: how long each exchange took, and how much of it was exposed."""
    measurements.samples |= summary_of(read_rank(events, on_gpu=on_gpu)).samples()
