"""Breakdown: record a few normal steps on a GPU, read what they consist of, and locate waits for the GPU."""

import statistics

import torch

from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS, Breakdown
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.traces.step_trace import read_steps
from scalescope.worker.benchmarks.profile import recorded_steps
from scalescope.worker.benchmarks.train import TrainingRun, prepared
from scalescope.worker.machine.calibration import product_rates
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.line_times import timed_lines
from scalescope.worker.trace.parts import step_counts, store_parts, store_waits
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S, recorded_events, torch_profiler
from scalescope.worker.trace.synchronizations import located_synchronizations
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.warmup import typical_step_s


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """What this rank's steps consist of; the times under the profiler are not training times."""
    if device.type != "cuda":
        raise BadInput("breakdown requires a CUDA GPU; on the CPU the timed launch has the parts of a step")
    options = trial.options(Breakdown)
    measurements = Measurements()
    with prepared(trial, group, device, position, fault, measurements) as run:
        position.enter(RankStage.WARMUP)
        warmup_times_s, _ = run.steps(options.warmup_on(device.type))
        step_s = group.largest(typical_step_s(warmup_times_s), device)
        plain, recorded = step_counts(step_s)
        position.plan(position.begun + plain + recorded + 2 * WATCHED_STEPS)
        position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        plain_step_s = _plain_step_s(run, plain)
        recorder = torch_profiler(device, record_shapes=True)
        measurements.samples["recorded_step_time_s"] = recorded_steps(run, recorded, device, recorder)
        group.barrier()  # reading the trace of one rank must not be recorded as waiting by another
        trace = read_steps(recorded_events(recorder))
        with located_synchronizations(device) as waits:
            run.steps(WATCHED_STEPS)
        with timed_lines(waits.lines) as times_s:
            run.steps(WATCHED_STEPS)
        waits.times_s = times_s
        group.barrier()
    measurements.counters |= product_rates(device)
    store_parts(measurements, trace, plain_step_s)
    store_waits(measurements, trace, waits)
    return measurements


def _plain_step_s(run: TrainingRun, count: int) -> float:
    """The typical step without a profiler in this very launch."""
    times_s, _ = run.steps(count)
    return statistics.median(times_s)
