"""The clock of a measured window: device events on a GPU, a monotonic clock on the CPU.

The device is synchronised only at the edges of the window. Inside it a GPU rank records one event per step,
so measuring neither stops the queue nor waits for it.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch

from scalescope import clocks


class Clock(Protocol):
    """Marks the beginning of a window and the end of each of its steps."""

    def start(self) -> None: ...

    def tick(self) -> int:
        """Mark the end of a step; returns how many steps the device has finished."""
        ...

    @property
    def record(self) -> Callable[[int], object]:
        """The shortest way to mark the end of a step, given `clocks.perf_counter_ns()`."""
        ...

    def finished(self) -> int:
        """How many of the marked steps the device has done by now."""
        ...

    def finish(self) -> None:
        """Wait until all marked steps are done."""
        ...

    def step_times_s(self) -> list[float]: ...


class CpuClock:
    """Host time at every boundary of a step."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self.record = self._ticks.append

    def start(self) -> None:
        self.record(clocks.perf_counter_ns())

    def tick(self) -> int:
        self.record(clocks.perf_counter_ns())
        return len(self._ticks) - 1

    def finished(self) -> int:
        return len(self._ticks) - 1

    def finish(self) -> None:
        pass

    def step_times_s(self) -> list[float]:
        return [(end - begin) / 1e9 for begin, end in pairwise(self._ticks)]


class CudaClock:
    """A device event at every boundary of a step, read after the window."""

    def __init__(self, steps: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        self._count = 0
        self._finished = 0

    def start(self) -> None:
        for event in self._events:  # the driver makes an event when it is first recorded
            event.record()
        torch.cuda.synchronize()
        self._events[0].record()

    def tick(self) -> int:
        self.record(0)
        return self.finished()

    def record(self, now_ns: int) -> None:
        self._count += 1
        self._events[self._count].record()

    def finished(self) -> int:
        while self._finished < self._count and self._events[self._finished + 1].query():
            self._finished += 1
        return self._finished

    def finish(self) -> None:
        self._events[self._count].synchronize()

    def step_times_s(self) -> list[float]:
        marks = self._events[: self._count + 1]
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(marks)]


def clock_for(device: torch.device, steps: int) -> Clock:
    """The clock that fits a device."""
    return CudaClock(steps) if device.type == "cuda" else CpuClock()
