"""The profiling benchmark: warm up, record a few steps, then let DDP time a few more itself."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from scalescope.catalog.benchmarks.profile import Profile
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import RankStage
from scalescope.results.traces.events import is_communication, is_transfer, read_events
from scalescope.worker.benchmarks.train import OwnLoop, prepared
from scalescope.worker.engine.recording import recorded_steps
from scalescope.worker.engine.steps import Steps, driven
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S, torch_profiler
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import named

_CAPTURED = "scalescope.captured"


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """A trace of a few steps, if this rank is chosen; their times are not training times."""
    with prepared(trial, group, device, position, fault) as loop:
        return loop.with_known(driven(_profiled(loop, trial.options(Profile)), loop.make_step))


def _profiled(loop: OwnLoop, options: Profile) -> Steps[Measurements]:
    engine, measurements = loop.engine, Measurements()
    loop.position.plan(options.steps())
    yield from engine.warmed_up(options.warmup)
    engine.ranks.meet("warm")
    loop.position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
    if options.records(loop.group.rank):
        times_s = yield from _recorded(loop, options, measurements)
    else:
        times_s = yield from engine.timed(options.recorded)
    measurements.samples["recorded_step_time_s"] = times_s
    engine.ranks.meet("recorded")
    yield from _counted(loop, options, measurements)
    measurements.samples |= loop.steps.step.samples()
    return measurements


def _recorded(loop: OwnLoop, options: Profile, measurements: Measurements) -> Steps[list[float]]:
    """Steps under a profiler; returns their times, which include its overhead."""
    watch, device = loop.steps.step.watch, loop.device
    if options.profile_with == "nvtx" and watch is not None:
        watch.mark_buckets()
    recorder = _recorder(options, device)
    times_s = yield from recorded_steps(loop.engine, options.recorded, recorder)
    if options.profile_with == "torch":
        measurements.write_trace = lambda path: _write(recorder, path, device)
    return times_s


def _recorder(options: Profile, device: torch.device) -> AbstractContextManager[Any]:
    """Our profiler; or, for an external one, a named range around all steps."""
    if options.profile_with == "nvtx":
        return named(_CAPTURED, device)
    return torch_profiler(device, record_shapes=True)


def _write(recorder: Any, path: Path, device: torch.device) -> dict[str, int]:
    """Write the trace and count the events in the file, to detect an empty trace."""
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


def _counted(loop: OwnLoop, options: Profile, measurements: Measurements) -> Steps[None]:
    """Let DDP time steps: after the recorded ones, because on a GPU it waits for the device in each."""
    watch = loop.steps.step.watch
    if watch is None:
        yield from loop.engine.timed(options.counted)
        return
    watch.begin()
    timings = []
    for _ in range(options.counted):
        yield from loop.engine.timed(1)
        timings.append(watch.times())
    # The times after a step may belong to the step before it, and the first of those was not timed.
    known = [timing for timing in timings[2:] if timing is not None]
    measurements.samples["ddp_communication_s"] = [timing.communication_s for timing in known]
    measurements.samples["ddp_overlap_s"] = [timing.overlap_s for timing in known]
    measurements.samples["ddp_backward_s"] = [timing.backward_s for timing in known]
