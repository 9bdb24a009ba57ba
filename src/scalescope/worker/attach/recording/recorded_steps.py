"""Recorded steps of a script: some plain, some under a profiler, some in which waits for the GPU are located.

A recording is a generator that goes on at the end of every step of the script. What it stores is what the
benchmarks of the same names store for our own ranks.
"""

import contextlib
import statistics
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS
from scalescope.catalog.benchmarks.train import warmup_of
from scalescope.errors import BadInput
from scalescope.experiment.recordings import records_arrivals, records_breakdown
from scalescope.experiment.trial import Trial
from scalescope.results.traces.step_trace import read_steps
from scalescope.worker.attach.rank_group import ScriptRanks
from scalescope.worker.attach.recording.phases import StepPhases
from scalescope.worker.machine.calibration import product_rates
from scalescope.worker.machine.timing import clock_for
from scalescope.worker.trace.line_times import timed_lines
from scalescope.worker.trace.parts import step_counts, store_parts, store_waits
from scalescope.worker.trace.recorder import recorded_events, torch_profiler
from scalescope.worker.trace.synchronizations import Synchronizations, located_synchronizations
from scalescope.worker.trace.waiting import recorded_count, store_arrivals
from scalescope.worker.training.measurements import Measurements

Recorded = Generator[None, None, Measurements]
Timed = Generator[None, None, list[float]]


def is_recorded(trial: Trial) -> bool:
    """Whether a launch records steps instead of timing them."""
    return records_arrivals(trial) or records_breakdown(trial)


def warmup_steps(trial: Trial, device: torch.device) -> int:
    """Steps before the timed or recorded ones."""
    least = warmup_of(trial.settings)
    if not is_recorded(trial):
        return least
    return max(least, int(trial.options(trial.benchmark_card).warmup_on(device.type)))


@dataclass(frozen=True, kw_only=True)
class ScriptRecording:
    """The steps of one rank that are recorded; all ranks record as many."""

    trial: Trial
    device: torch.device
    ranks: ScriptRanks
    phases: StepPhases
    step_s: float  # that all ranks agreed on
    plain_step_s: float | None = None  # without a profiler, where it is known already
    meeting: str = "recorded"  # of all ranks, after the recorded steps
    locate: Callable[[torch.device], AbstractContextManager[Synchronizations]] = located_synchronizations
    rates: Callable[[torch.device], dict[str, float]] = product_rates

    def check(self) -> None:
        """Refuse to look for parts of a GPU step where the script has no GPU, and two profilers at once."""
        if records_breakdown(self.trial) and self.device.type != "cuda":
            raise BadInput("breakdown requires a CUDA GPU, and the script trains on the CPU")
        if torch.autograd._profiler_enabled():
            raise BadInput("the script uses torch's profiler itself, so its steps cannot be recorded")

    @property
    def steps(self) -> int:
        """How many steps the recording takes."""
        if records_arrivals(self.trial):
            return self._arrivals_count
        plain, recorded = step_counts(self.step_s)
        return (plain if self.plain_step_s is None else 0) + recorded + 2 * WATCHED_STEPS

    def run(self) -> Recorded:
        """Goes on at the end of every step; returns what to store."""
        return self._arrivals() if records_arrivals(self.trial) else self._breakdown()

    @property
    def _arrivals_count(self) -> int:
        return recorded_count(self.trial.window_s, self.step_s)

    def _arrivals(self) -> Recorded:
        measurements = Measurements()
        events = yield from self._under_profiler(self._arrivals_count, measurements)
        store_arrivals(measurements, events, on_gpu=self.device.type == "cuda")
        return measurements

    def _breakdown(self) -> Recorded:
        measurements = Measurements()
        plain, recorded = step_counts(self.step_s)
        plain_step_s = self.plain_step_s
        if plain_step_s is None:
            plain_step_s = statistics.median((yield from self._timed(plain)))
        events = yield from self._under_profiler(recorded, measurements)
        trace = read_steps(events)
        with self.locate(self.device) as waits:
            yield from self._timed(WATCHED_STEPS)
        with timed_lines(waits.lines) as times_s:
            yield from self._timed(WATCHED_STEPS)
        waits.times_s = times_s
        with contextlib.suppress(torch.cuda.OutOfMemoryError):  # the script may have taken all there is
            measurements.counters |= self.rates(self.device)
        store_parts(measurements, trace, plain_step_s)
        store_waits(measurements, trace, waits)
        return measurements

    def _under_profiler(
        self, count: int, measurements: Measurements
    ) -> Generator[None, None, list[dict[str, Any]]]:
        recorder = torch_profiler(self.device, record_shapes=records_breakdown(self.trial))
        with recorder, self.phases.installed():
            times_s = yield from self._timed(count, self.phases.end_step)
        measurements.samples["recorded_step_time_s"] = times_s
        self.ranks.meet(self.meeting)  # reading a trace must not be recorded as waiting by another rank
        return recorded_events(recorder)

    def _timed(self, count: int, at_end: Callable[[], None] | None = None) -> Timed:
        """The next steps of the script; returns their times."""
        clock = clock_for(self.device, count)
        clock.start()
        for _ in range(count):
            yield
            if at_end is not None:
                at_end()
            clock.tick()
        clock.finish()
        return clock.step_times_s()
