"""Arrivals: record a few normal steps, and keep of the trace what tells who waited for whom."""

import math
import tempfile
from pathlib import Path

import torch
from torch.profiler import profile

from scalescope.catalog.benchmarks.arrivals import LEAST_STEPS, MOST_STEPS, Arrivals
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.traces.events import read_events
from scalescope.results.traces.rank_trace import TracedRank, read_rank
from scalescope.results.traces.summary import summary_of
from scalescope.worker.benchmarks.profile import LONGEST_PAUSE_S, recorded_steps, torch_profiler
from scalescope.worker.benchmarks.train import prepared
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.warmup import typical_step_s

_WINDOW_S = 1.5  # where a launch counts its steps
_TRACE = "trace.json"


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
        count = recorded_count(options.window or _WINDOW_S, step_s)
        position.plan(position.begun + count)
        position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        recorder = torch_profiler(device, record_shapes=False)
        measurements.samples["recorded_step_time_s"] = recorded_steps(run, count, device, recorder)
        group.barrier()  # reading the trace of one rank must not be recorded as waiting by another
        traced = _read(recorder, on_gpu=device.type == "cuda")
    summary = summary_of(traced)
    measurements.samples |= summary.samples()
    measurements.counters |= summary.counters()
    return measurements


def recorded_count(window_s: float, step_s: float) -> int:
    """Steps to record, equal on all ranks; the first pays for the profiler's start and is not read."""
    return 1 + max(LEAST_STEPS, min(MOST_STEPS, math.ceil(window_s / max(step_s, 1e-9))))


def _read(recorder: profile, *, on_gpu: bool) -> TracedRank:
    with tempfile.TemporaryDirectory(prefix="scalescope-") as folder:
        path = Path(folder) / _TRACE
        recorder.export_chrome_trace(str(path))
        return read_rank(read_events(path), on_gpu=on_gpu)
