"""The profiling benchmark: warm up, record a few steps, then let DDP time a few more itself."""

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from scalescope.catalog.benchmarks.profile import Profile
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.traces.events import is_communication, is_transfer, read_events
from scalescope.worker.benchmarks.train import TrainingRun, prepared
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S, torch_profiler
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import named, ranges_on, step_marks, with_input_range, with_ranges

_CAPTURED = "scalescope.captured"


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """A trace of a few steps, if this rank is chosen; their times are not training times."""
    options = trial.options(Profile)
    measurements = Measurements()
    with prepared(trial, group, device, position, fault, measurements) as run:
        position.plan(options.steps())
        position.enter(RankStage.WARMUP)
        run.steps(options.warmup)
        group.barrier()
        position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        chosen = options.records(group.rank)
        measurements.samples["recorded_step_time_s"] = _record(
            run, options, device, measurements, chosen=chosen
        )
        group.barrier()
        _count(run, options, measurements)
        measurements.samples |= run.step.samples()
    return measurements


def _record(
    run: TrainingRun, options: Profile, device: torch.device, measurements: Measurements, *, chosen: bool
) -> list[float]:
    """Run the steps under a profiler; returns their times, which include its overhead."""
    if not chosen:
        return run.steps(options.recorded)[0]
    if options.profile_with == "nvtx" and run.step.watch is not None:
        run.step.watch.mark_buckets()
    recorder = _recorder(options, device)
    times_s = recorded_steps(run, options.recorded, device, recorder)
    if options.profile_with == "torch":
        measurements.write_trace = lambda path: _write(recorder, path, device)
    return times_s


def recorded_steps(
    run: TrainingRun, count: int, device: torch.device, recorder: AbstractContextManager[Any]
) -> list[float]:
    """Run steps inside a recorder, with the ranges that a trace is read by; returns their times."""
    ranges = ranges_on(device)
    marked = dataclasses.replace(
        run, step=with_ranges(run.step, ranges), feed=with_input_range(run.feed, ranges)
    )
    begun = run.position.begun
    with recorder, step_marks(marked.step, range(begun, begun + count)) as step:
        return dataclasses.replace(marked, step=step).steps(count)[0]


def _recorder(options: Profile, device: torch.device) -> AbstractContextManager[Any]:
    """Our profiler; or, for an external one, a named range around all steps."""
    if options.profile_with == "nvtx":
        return named(_CAPTURED, device)
    return torch_profiler(device, record_shapes=True)


def _write(recorder: Any, path: Path, device: torch.device) -> dict[str, int]:
    """Write the trace and count the events in the file, so that an empty trace is noticed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    recorder.export_chrome_trace(str(path))
    transfers = device_events = 0
    for event in read_events(path):
        name, kernel = str(event.get("name", "")), event.get("cat") == "kernel"
        device_events += kernel
        # On a GPU the host's events only show that something was launched.
        transfers += is_transfer(name) or (kernel and is_communication(name))
    counts = {"communication_events": transfers}
    return counts if device.type == "cpu" else {**counts, "device_events": device_events}


def _count(run: TrainingRun, options: Profile, measurements: Measurements) -> None:
    """Let DDP time steps: after the recorded ones, because on a GPU it waits for the device in each."""
    watch = run.step.watch
    if watch is None:
        run.steps(options.counted)
        return
    watch.begin()
    timings = []
    for _ in range(options.counted):
        run.steps(1)
        timings.append(watch.times())
    # The times after a step may belong to the step before it, and the first of those was not timed.
    known = [timing for timing in timings[2:] if timing is not None]
    measurements.samples["ddp_communication_s"] = [timing.communication_s for timing in known]
    measurements.samples["ddp_overlap_s"] = [timing.overlap_s for timing in known]
    measurements.samples["ddp_backward_s"] = [timing.backward_s for timing in known]
