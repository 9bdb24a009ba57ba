"""Breakdown: record a few normal steps on a GPU, read what they consist of, and locate waits for the GPU."""

import statistics
import tempfile
from pathlib import Path

import torch
from torch.profiler import profile

from scalescope.catalog.benchmarks.breakdown import (
    LEAST_STEPS,
    MOST_STEPS,
    PLAIN_STEPS,
    WATCHED_STEPS,
    Breakdown,
)
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.traces.events import read_events
from scalescope.results.traces.replay import Changes, Replay
from scalescope.results.traces.step_parts import PREFIX
from scalescope.results.traces.step_trace import StepTrace, read_steps
from scalescope.worker.benchmarks.profile import LONGEST_PAUSE_S, recorded_steps, torch_profiler
from scalescope.worker.benchmarks.train import TrainingRun, prepared
from scalescope.worker.machine.calibration import product_rates
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.line_times import timed_lines
from scalescope.worker.trace.synchronizations import Synchronizations, located_synchronizations
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.warmup import typical_step_s

_PLAIN_S = 1.0
_RECORDED_S = 1.0
_TRACE = "trace.json"
_MOST_OPERATIONS = 3  # without a line of code
_REPLAYS = {
    "step_s": Changes(),
    "without_sync_s": Changes(waits=False),
    "without_allocation_s": Changes(allocations=False),
    "fast_host_s": Changes(waits=False, allocations=False, host=False),
}


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
        plain, recorded = _counts(step_s)
        position.plan(position.begun + plain + recorded + 2 * WATCHED_STEPS)
        position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        plain_step_s = _plain_step_s(run, plain, measurements)
        recorder = torch_profiler(device, record_shapes=False)
        measurements.samples["recorded_step_time_s"] = recorded_steps(run, recorded, device, recorder)
        group.barrier()  # reading the trace of one rank must not be recorded as waiting by another
        trace = _read(recorder)
        with located_synchronizations(device) as waits:
            run.steps(WATCHED_STEPS)
        with timed_lines(waits.lines) as times_s:
            run.steps(WATCHED_STEPS)
        waits.times_s = times_s
        group.barrier()
    measurements.counters |= product_rates(device)
    _store(measurements, trace, plain_step_s)
    _store_waits(measurements, trace, waits)
    return measurements


def _counts(step_s: float) -> tuple[int, int]:
    """How many steps to run without a profiler and with it; the first of these is not read."""
    plain = max(LEAST_STEPS, min(PLAIN_STEPS, round(_PLAIN_S / max(step_s, 1e-9))))
    return plain, 1 + max(LEAST_STEPS, min(MOST_STEPS, round(_RECORDED_S / max(step_s, 1e-9))))


def _plain_step_s(run: TrainingRun, count: int, measurements: Measurements) -> float:
    """The typical step without a profiler in this very launch, and the host's time in the optimizer."""
    times_s, window = run.steps(count)
    if "optimizer" in window.host_s:
        measurements.counters["optimizer_host_s"] = window.host_s["optimizer"] / count
    return statistics.median(times_s)


def _read(recorder: profile) -> StepTrace:
    with tempfile.TemporaryDirectory(prefix="scalescope-") as folder:
        path = Path(folder) / _TRACE
        recorder.export_chrome_trace(str(path))
        return read_steps(read_events(path))


def _store(measurements: Measurements, trace: StepTrace, plain_step_s: float) -> None:
    measurements.samples |= {f"{PREFIX}{name}": times_s for name, times_s in trace.parts.items()}
    measurements.counters |= {**trace.counters, "plain_step_s": plain_step_s}
    measurements.tables["kernels"] = trace.kernels
    replay = Replay(calls=trace.calls, delays=trace.delays)
    factor = replay.fitted_factor(plain_step_s)
    if factor is None:
        return
    replays = {name: replay.step_s(factor, changes) for name, changes in _REPLAYS.items()}
    measurements.counters |= {f"replay/{name}": step_s for name, step_s in replays.items()}
    measurements.counters["replay/host_factor"] = factor


def _store_waits(measurements: Measurements, trace: StepTrace, waits: Synchronizations) -> None:
    """The lines that wait, and what the trace alone knows: operations that wait more often than lines do."""
    rows = waits.rows(WATCHED_STEPS)
    located = sum(waits.sites.values()) / WATCHED_STEPS
    in_trace = sum(trace.waits.values())
    measurements.counters |= {"syncs_were_located": int(waits.can_locate), "waits_per_step": in_trace}
    if in_trace - located >= 1.0:
        rows += [
            {
                "file": "",
                "line": 0,
                "function": "",
                "code": "",
                "operation": operation,
                "per_step": min(count, in_trace - located),
                "from_trace": True,
            }
            for operation, count in sorted(trace.waits.items(), key=lambda wait: -wait[1])[:_MOST_OPERATIONS]
        ]
    measurements.tables["synchronizations"] = rows
