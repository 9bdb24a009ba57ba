"""Recorded steps: a few normal ones under a profiler, with names for their parts, and located waits.

Their times include the profiler and are not training times.
"""

import contextlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS
from scalescope.catalog.benchmarks.train import warmup_of
from scalescope.errors import BadInput
from scalescope.experiment.explanations import records_arrivals, records_breakdown
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import RankStage
from scalescope.results.traces.step_trace import read_steps
from scalescope.worker.engine.steps import Engine, Steps, typical_step_s
from scalescope.worker.machine.rates import product_rates
from scalescope.worker.trace.host_lines import (
    Synchronizations,
    located_synchronizations,
    recorded_count,
    store_arrivals,
    timed_lines,
)
from scalescope.worker.trace.padded_products import store_padded_products
from scalescope.worker.trace.recorder import (
    LONGEST_PAUSE_S,
    recorded_events,
    step_counts,
    store_parts,
    store_waits,
    torch_profiler,
)
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import ranges_on


def is_recorded(trial: Trial) -> bool:
    """Whether a launch records steps instead of timing them."""
    return records_arrivals(trial) or records_breakdown(trial)


def warmup_steps(trial: Trial, device: torch.device) -> int:
    """Steps before the recorded ones."""
    return max(warmup_of(trial.settings), int(trial.options(trial.benchmark_card).warmup_on(device.type)))


def check_recording(trial: Trial, device: torch.device) -> None:
    """Refuse to look for parts of a GPU step where there is no GPU, and two profilers at once."""
    if records_breakdown(trial) and device.type != "cuda":
        raise BadInput(
            "breakdown requires a CUDA GPU; on the CPU the timed launch already measures the parts of a step"
        )
    if torch.autograd._profiler_enabled():
        raise BadInput("torch's profiler is already in use, so steps cannot be recorded")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The recorded steps of one rank; all ranks record as many."""

    engine: Engine
    trial: Trial
    step_s: float  # that all ranks agreed on
    plain_step_s: float | None = None  # without a profiler, where it is known already
    meeting: str = "recorded"  # of all ranks, after the recorded steps
    locate: Callable[[torch.device], AbstractContextManager[Synchronizations]] = located_synchronizations
    rates: Callable[[torch.device], dict[str, float]] = product_rates

    @property
    def steps(self) -> int:
        """How many steps the recording takes."""
        if records_arrivals(self.trial):
            return self._arrivals_count
        plain, recorded = step_counts(self.step_s)
        return (plain if self.plain_step_s is None else 0) + recorded + 2 * WATCHED_STEPS

    def recorded(self) -> Steps[Measurements]:
        """Record; returns what to store."""
        check_recording(self.trial, self.engine.device)
        return (yield from self._arrivals() if records_arrivals(self.trial) else self._breakdown())

    @property
    def _arrivals_count(self) -> int:
        return recorded_count(self.trial.window_s, self.step_s)

    def _arrivals(self) -> Steps[Measurements]:
        """What tells who waited for whom."""
        measurements = Measurements()
        events = yield from self._under_profiler(self._arrivals_count, measurements)
        store_arrivals(measurements, events, on_gpu=self.engine.on_gpu)
        return measurements

    def _breakdown(self) -> Steps[Measurements]:
        """What steps on a GPU consist of, and the lines that wait for it."""
        measurements, engine = Measurements(), self.engine
        plain, recorded = step_counts(self.step_s)
        plain_step_s = self.plain_step_s
        if plain_step_s is None:
            plain_step_s = statistics.median((yield from engine.timed(plain)))
        events = yield from self._under_profiler(recorded, measurements)
        trace = read_steps(events)
        with self.locate(engine.device) as waits:
            yield from engine.timed(WATCHED_STEPS)
        with timed_lines(waits.lines) as times_s:
            yield from engine.timed(WATCHED_STEPS)
        waits.times_s = times_s
        with contextlib.suppress(torch.cuda.OutOfMemoryError):  # the training may have taken all there is
            measurements.counters |= self.rates(engine.device)
            store_padded_products(measurements, trace.products, engine.device)
        store_parts(measurements, trace, plain_step_s)
        store_waits(measurements, trace, waits)
        return measurements

    def _under_profiler(self, count: int, measurements: Measurements) -> Steps[list[dict[str, Any]]]:
        recorder = torch_profiler(self.engine.device, record_shapes=records_breakdown(self.trial))
        times_s = yield from recorded_steps(self.engine, count, recorder)
        measurements.samples["recorded_step_time_s"] = times_s
        self.engine.ranks.meet(self.meeting)  # reading a trace must not be recorded as waiting by others
        return recorded_events(recorder)


def recorded_steps(engine: Engine, count: int, recorder: AbstractContextManager[Any]) -> Steps[list[float]]:
    """Steps inside a recorder, with the ranges that a trace is read by; returns their times."""
    with recorder, engine.loop.marked(ranges_on(engine.device), count) as after_step:
        return (yield from engine.timed(count, after_step))


def recorded_launch(engine: Engine) -> Steps[Measurements]:
    """A launch that records: warm up, agree on the number of steps, record them."""
    times_s = yield from engine.warmed_up(warmup_steps(engine.trial, engine.device))
    step_s = engine.ranks.common("window", typical_step_s(times_s))
    recording = Recording(engine=engine, trial=engine.trial, step_s=step_s)
    engine.position.plan(engine.position.begun + recording.steps)
    engine.position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
    engine.loop.begin_window()
    engine.ranks.meet("ready")
    return (yield from recording.recorded())
