"""The engine: what is measured of a training loop, step by step, whoever runs the loop.

Every part of a measurement is a generator that goes on at the end of each step. Our own loop makes a step
whenever one is asked for (`driven`); in a script, hooks tell when a step has ended.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from scalescope import clocks
from scalescope.catalog.benchmarks.train import Train, warmup_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import RankStage
from scalescope.results.result import WINDOW
from scalescope.worker.machine.capabilities import sm_clock_hz, temperature_c
from scalescope.worker.machine.rates import Clock, clock_for
from scalescope.worker.process.position import Position
from scalescope.worker.training.activity import AllocatorWatch, CompilationWatch, GarbageWatch
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import RangeOf

Value = TypeVar("Value")
Steps = Generator[None, None, Value]  # goes on at the end of every step

LEAST_GPU_S = 1.0  # until the clocks of an idle GPU are up
MOST_STEPS = 10_000  # per window: raw samples are kept, and steps below 0.1 ms are not training
_MOST_EXTRA_STEPS = 10_000
_PROBED = 0.1  # of the window
_PROBED_STEPS, _MOST_PROBED_STEPS = 4, 1_000  # between two looks at the time; in all
_MOST_TURNS = 16
_STEPS_AFTER_PAUSE = 2  # they use up what loaders prefetch while a sensor is read
_WINDOW_S = 1.5  # where none was asked for
_PUBLISH_S = 0.05  # of steps between two signs of life in the window
_POLL_S = 0.0005  # shorter than a step: polling must not delay the end of the window
_CHUNK_S = 5.0  # of soaking, between two readings of the clocks
_LEAST_CHUNKS = 6
_LEAST_CHUNK_STEPS = 5
_FLAT = 0.005  # relative change of step times and clocks
_FLAT_C = 1.0


class LoopEnded(Exception):
    """Thrown into a measurement: the loop makes no more steps."""


class Ranks(Protocol):
    """This rank among the others of the job. What depends on times is agreed on: a rank that made one step
    more would wait for a collective that no other rank joins."""

    @property
    def rank(self) -> int: ...

    def common(self, name: str, value: float) -> float:
        """One value for all ranks, from the value of each."""
        ...

    def meet(self, name: str) -> None:
        """Wait until all ranks are here."""


class Loop(Protocol):
    """A training loop, as the engine sees it."""

    def alive(self, steps: int) -> None:
        """That many steps have ended since the last call."""

    def end_warmup_step(self) -> None:
        """A step of the warm-up has ended."""

    def forget(self) -> None:
        """Drop what was kept of the steps so far: they are too many."""

    def batches_ahead(self) -> int:
        """How many batches loader processes have ready where the loop is slower than they are."""
        ...

    def windows(self, step_s: float, made: int) -> list[int]:
        """The lengths of the timed windows, in steps, after this many warm-up steps."""
        ...

    def begin_window(self) -> None:
        """The timed or recorded steps follow."""

    def end_window(self) -> None:
        """One of the windows is over."""

    def collect(self, measurements: Measurements, garbage: GarbageWatch) -> None:
        """The timed steps are over: add what the loop knows about them."""

    def marked(self, range_of: RangeOf, count: int) -> AbstractContextManager[Callable[[], None] | None]:
        """Inside, each part of the next `count` steps has its range; returns what to call after a step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What measures one rank's loop."""

    trial: Trial
    device: torch.device
    ranks: Ranks
    position: Position
    loop: Loop
    compilation: CompilationWatch = field(default_factory=CompilationWatch)  # from before the first step

    @property
    def options(self) -> Train:
        return self.trial.options(Train)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def timed(
        self, count: int, after_step: Callable[[], None] | None = None, publish_every: int = 1
    ) -> Steps[list[float]]:
        """The next steps under a clock; returns their times. A loop that ends early must have made enough."""
        clock, position, before = clock_for(self.device, count), self.position, self.position.completed
        record, now = clock.record, clocks.perf_counter_ns
        done = published = 0
        clock.start()
        try:
            while done < count:
                yield
                if after_step is not None:
                    after_step()
                record(now())
                done += 1
                if done - published == publish_every:
                    published = done
                    position.completed = before + clock.finished()
                    self.loop.alive(publish_every)
        except LoopEnded:
            if done < self.options.min_steps:
                raise
        if done > published:
            self.loop.alive(done - published)
        self._drain(clock, before, done)
        return clock.step_times_s()

    def _drain(self, clock: Clock, before: int, done: int) -> None:
        """Wait until the device has made the steps; a GPU may be far behind, which is not a hang."""
        position = self.position
        while (finished := clock.finished()) < done - 1:
            position.completed = before + finished
            position.mark(position.phase)
            clocks.sleep(_POLL_S)
        clock.finish()
        position.completed = before + done

    def warmed_up(self, count: int) -> Steps[list[float]]:
        """Steps before those that count."""
        self.position.enter(RankStage.WARMUP)
        return (yield from self.timed(count, self.loop.end_warmup_step))

    def trained(self) -> Steps[Measurements]:
        """Warm up, then time the steps that follow."""
        measurements = Measurements()
        times_s, step_s = yield from self._warm_up(measurements)
        step_s = self.ranks.common("window", step_s)
        counts = self.loop.windows(step_s, len(times_s))
        self.position.plan(self.position.begun + sum(counts))
        self.position.enter(RankStage.STEADY)
        garbage = GarbageWatch(self.position)
        watches = AllocatorWatch(self.device), self.compilation, garbage
        self.ranks.meet("ready")  # all ranks begin together, and nothing is exchanged after that
        self.loop.begin_window()
        measured_s: list[float] = []
        publish_every = max(1, int(_PUBLISH_S / max(step_s, 1e-9)))
        began = clocks.monotonic()
        for count in counts:
            if count:
                with contextlib.ExitStack() as watching:
                    for watch in watches:
                        watch.begin()
                        watching.callback(watch.end)
                    measured_s += yield from self.timed(count, publish_every=publish_every)
            self.loop.end_window()
        measurements.counters |= dict(zip(WINDOW, (began, clocks.monotonic()), strict=True))
        measurements.counters["measured_steps"] = len(measured_s)
        measurements.samples |= {"warmup_step_time_s": times_s, "step_time_s": measured_s}
        for watch in watches:
            measurements.counters |= watch.counters()
        measurements.tables |= self.compilation.tables()
        if self.on_gpu:
            measurements.counters["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        self._record_clock(measurements, "after")
        self.loop.collect(measurements, garbage)
        return measurements

    def _warm_up(self, measurements: Measurements) -> Steps[tuple[list[float], float]]:
        """The times of its steps, and how long a step usually takes. A launch that counts its steps makes
        exactly as many as asked."""
        sm_clock_hz(self.device)  # the first reading loads a library
        is_timed, options = self.options.is_timed, self.options
        times_s = yield from self.warmed_up(warmup_of(self.trial.settings))
        probed_s: float | None = None  # the mean step, where it took more steps to know it
        if is_timed and (ahead := int(self.ranks.common("ahead", float(self.loop.batches_ahead())))):
            probed_s = yield from self._probed(ahead, times_s)
        if self.on_gpu and is_timed:
            missing = extra_steps(probed_s or typical_step_s(times_s), len(times_s))
            extra = int(self.ranks.common("warmup", float(missing)))
            times_s += yield from self.timed(extra, self.loop.end_warmup_step)
        # From here on a step has a usual length, so a rank that hangs is noticed, however long it soaks.
        self.position.enter(RankStage.STEADY, slowest_warmup_s=max(times_s))
        if is_timed and options.soak is not None:
            measurements.counters |= yield from self._soaked(
                probed_s or typical_step_s(times_s), options.soak
            )
        self._record_clock(measurements, "before")
        if self.on_gpu and is_timed:
            times_s += yield from self.timed(_STEPS_AFTER_PAUSE, self.loop.end_warmup_step)
        return times_s, probed_s or typical_step_s(times_s)

    def _probed(self, ahead: int, times_s: list[float]) -> Steps[float]:
        """The mean step once the batches are used up that loader processes had ready: with those, a step may
        take no time. Its steps are added to `times_s`, and take about a window at most."""
        window_s = self.options.window or _WINDOW_S
        spent_s, counted_s = 0.0, []
        while True:
            are_used_up = len(times_s) >= ahead or spent_s >= window_s
            chunk_s = yield from self.timed(_PROBED_STEPS, self.loop.end_warmup_step)
            times_s += chunk_s
            mean_s = self.ranks.common("probe", math.fsum(chunk_s) / _PROBED_STEPS)
            spent_s += mean_s * _PROBED_STEPS
            if are_used_up or spent_s >= window_s:
                counted_s.append(mean_s)
            is_enough = math.fsum(counted_s) * _PROBED_STEPS >= _PROBED * window_s
            has_turns = len(counted_s) * _PROBED_STEPS >= min(ahead, _MOST_TURNS)  # batches come in groups
            if spent_s >= window_s or (is_enough and has_turns) or len(times_s) >= _MOST_PROBED_STEPS:
                return math.fsum(counted_s) / len(counted_s) if counted_s else mean_s

    def _soaked(self, step_s: float, most_s: float) -> Steps[dict[str, float | int | str | None]]:
        """Train until nothing changes any more on any rank, or for `most_s`; returns what to record."""
        step_s = self.ranks.common("soak", step_s)
        chunk_s = min(_CHUNK_S, most_s / (2 * _LEAST_CHUNKS))
        count = max(_LEAST_CHUNK_STEPS, min(math.ceil(chunk_s / max(step_s, 1e-9)), _MOST_EXTRA_STEPS))
        began = clocks.monotonic()
        readings: list[GpuReading] = []
        reached, elapsed_s = False, 0.0
        while not reached and elapsed_s + count * step_s <= most_s:
            times_s = yield from self.timed(count)
            self.loop.forget()
            reading = GpuReading(
                step_s=math.fsum(times_s) / len(times_s),
                clock_hz=sm_clock_hz(self.device),
                temperature_c=temperature_c(self.device),
            )
            readings.append(reading)
            number = len(readings)
            reached = self.ranks.common(f"soak/{number}/steady", float(not is_steady(readings))) == 0.0
            elapsed_s = self.ranks.common(f"soak/{number}/time", clocks.monotonic() - began)
            step_s = elapsed_s / (count * number)
        return {"soak_s": elapsed_s, "soak_reached": int(reached)}

    def _record_clock(self, measurements: Measurements, when: str) -> None:
        clock_hz = sm_clock_hz(self.device)
        if clock_hz is not None:
            measurements.counters[f"sm_clock_hz_{when}"] = clock_hz


def driven(measurement: Steps[Value], make_step: Callable[[], None]) -> Value:
    """Make a step whenever the measurement asks for one; an error of a step is thrown into it."""
    error: Exception | None = None
    try:
        while True:
            if error is None:
                next(measurement)
            else:
                measurement.throw(error)
            error = None
            try:
                make_step()
            except Exception as raised:
                error = raised
    except StopIteration as end:
        measured: Value = end.value
        return measured
    finally:
        measurement.close()


def typical_step_s(warmup_times_s: Sequence[float]) -> float:
    """The shortest step in the second half of the warm-up: the first steps compile and allocate."""
    return min(warmup_times_s[len(warmup_times_s) // 2 :])


def extra_steps(step_s: float, made: int) -> int:
    """How many steps a GPU still needs until its clocks are up."""
    return max(0, min(math.ceil(LEAST_GPU_S / max(step_s, 1e-9) - made), _MOST_EXTRA_STEPS))


def steps_in_window(window_s: float | None, step_s: float, min_steps: int) -> int:
    """The number of steps of that length that fill the window."""
    wanted = math.ceil((window_s or _WINDOW_S) / max(step_s, 1e-9))
    return max(min_steps, min(wanted, MOST_STEPS))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A chunk of soaking: how long its steps took, and what the sensors showed after it."""

    step_s: float
    clock_hz: float | None = None
    temperature_c: float | None = None


def is_steady(readings: Sequence[GpuReading]) -> bool:
    """Whether the last two thirds show no drift: of clock and temperature, or else of the step times."""
    if len(readings) < _LEAST_CHUNKS:
        return False
    lasting = readings[len(readings) // 3 :]
    clocks = [reading.clock_hz for reading in lasting if reading.clock_hz]
    degrees = [reading.temperature_c for reading in lasting if reading.temperature_c is not None]
    if len(clocks) == len(degrees) == len(lasting):
        early, late = _halves(clocks)
        cool, warm = _halves(degrees)
        return abs(late / early - 1.0) <= _FLAT and abs(warm - cool) <= _FLAT_C
    early, late = _halves([reading.step_s for reading in lasting])
    return early > 0.0 and abs(late / early - 1.0) <= _FLAT


def _halves(values: Sequence[float]) -> tuple[float, float]:
    """The means of the earlier and the later half."""
    middle = len(values) // 2
    early, late = values[:middle], values[middle:]
    return math.fsum(early) / len(early), math.fsum(late) / len(late)
