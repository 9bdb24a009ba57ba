"""Arrivals: record a few normal steps, and keep of the trace what tells who waited for whom."""

import torch

from scalescope.catalog.benchmarks.arrivals import Arrivals
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.worker.benchmarks.profile import recorded_steps
from scalescope.worker.benchmarks.train import prepared
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S, recorded_events, torch_profiler
from scalescope.worker.trace.waiting import recorded_count, store_arrivals
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.warmup import typical_step_s


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """The summary of this rank's trace; its step times include the profiler and are not training times."""
    options = trial.options(Arrivals)
    measurements = Measurements()
    with prepared(trial, group, device, position, fault, measurements) as run:
        position.enter(RankStage.WARMUP)
        warmup_times_s, _ = run.steps(options.warmup_on(device.type))
        step_s = group.largest(typical_step_s(warmup_times_s), device)
        count = recorded_count(options.window, step_s)
        position.plan(position.begun + count)
        position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        recorder = torch_profiler(device, record_shapes=False)
        measurements.samples["recorded_step_time_s"] = recorded_steps(run, count, device, recorder)
        group.barrier()  # reading the trace of one rank must not be recorded as waiting by another
        events = recorded_events(recorder)
    store_arrivals(measurements, events, on_gpu=device.type == "cuda")
    return measurements
