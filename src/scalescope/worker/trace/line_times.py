"""How long the host spends on given lines of code, in steps that are not timed otherwise."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from scalescope import clocks

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
