"""The activity of a rank: everything that is noted while its timed steps run, and stored afterwards."""

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from scalescope.worker.process.position import Position
from scalescope.worker.training.activity.allocator import AllocatorWatch
from scalescope.worker.training.activity.compilation import CompilationWatch
from scalescope.worker.training.activity.garbage import GarbageWatch
from scalescope.worker.training.batch_work import BatchWork, by_step, work_counters, work_samples
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import StepWindow
from scalescope.worker.training.warmup import RunSteps

LONG_STEPS = "long_steps"
_LONG = 1.1  # times the median
_MOST_LONG_STEPS = 100
_DIGITS = 6  # microseconds


@dataclass(kw_only=True)
class _Timed:
    """The timed steps of a rank so far."""

    numbers: list[int] = field(default_factory=list)  # from 1 over all steps of the rank
    times_s: list[float] = field(default_factory=list)
    parts: tuple[str, ...] = ()  # of a step that the host's clock knows
    host_s: list[tuple[float, ...]] = field(default_factory=list)  # by these parts
    work: list[BatchWork] = field(default_factory=list)


class ActivityWatch:
    """Made before the warm-up; looks on while timed steps run."""

    def __init__(self, device: torch.device, position: Position) -> None:
        self._position = position
        self._garbage = GarbageWatch(position)
        self._allocator = AllocatorWatch(device)
        self._compilation = CompilationWatch()
        self._timed = _Timed()

    def steps(self, run_steps: RunSteps, count: int) -> tuple[list[float], StepWindow]:
        """Run the next steps and look on."""
        timed = self._timed
        timed.numbers += range(self._position.begun + 1, self._position.begun + 1 + count)
        with self._watching():
            times_s, window = run_steps(count)
        timed.times_s += times_s
        timed.parts = tuple(window.host_s)
        timed.host_s += _differences(window.host_marks_s)
        timed.work += by_step(window.batch_work)
        return times_s, window

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        watches = (self._allocator, self._compilation, self._garbage)
        for watch in watches:
            watch.begin()
        try:
            yield
        finally:
            for watch in reversed(watches):
                watch.end()

    def record(self, measurements: Measurements) -> None:
        """Store everything."""
        measurements.counters |= {
            **self._garbage.counters(),
            **self._allocator.counters(),
            **self._compilation.counters(),
            **work_counters(self._timed.work),
        }
        measurements.samples |= work_samples(self._timed.work)
        measurements.tables |= {LONG_STEPS: self._long_steps(), **self._compilation.tables()}

    def _long_steps(self) -> list[dict[str, float | int | str | None]]:
        """Where the host was in steps that took far longer than usual: seconds beyond the median of each.

        `step` counts measured steps from 0.
        """
        timed = self._timed
        usual_s = statistics.median(timed.times_s)
        usual_parts_s = [statistics.median(part) for part in zip(*timed.host_s, strict=True)]
        long = [step for step, time_s in enumerate(timed.times_s) if time_s > _LONG * usual_s]
        longest = sorted(long, key=lambda step: timed.times_s[step], reverse=True)[:_MOST_LONG_STEPS]
        rows: list[dict[str, float | int | str | None]] = []
        for step in sorted(longest):
            beyond = zip(timed.parts, timed.host_s[step], usual_parts_s, strict=True)
            rows.append(
                {
                    "step": step,
                    "beyond_s": round(timed.times_s[step] - usual_s, _DIGITS),
                    **{
                        f"{part}_beyond_s": round(part_s - part_usual_s, _DIGITS)
                        for part, part_s, part_usual_s in beyond
                    },
                    "gc_s": round(self._garbage.pause_s(timed.numbers[step]), _DIGITS),
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
