"""What a rank records and stores of its steps."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalescope.catalog.benchmarks.breakdown import LEAST_STEPS, MOST_STEPS, PLAIN_STEPS, WATCHED_STEPS
from scalescope.results.traces.events import read_events
from scalescope.results.traces.replay import REPLAYS, Changes, Replay
from scalescope.results.traces.step_parts import PREFIX
from scalescope.results.traces.step_trace import StepTrace
from scalescope.worker.trace.host_lines import Synchronizations
from scalescope.worker.training.measurements import Measurements

# ---- Torch's profiler in a rank, and the events that it recorded


LONGEST_PAUSE_S = 15.0  # writing a trace; the launcher waits twenty times as long
_TRACE = "trace.json"


def torch_profiler(device: torch.device, *, record_shapes: bool) -> profile:
    """Torch's profiler for the host and, where there is one, the GPU."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, record_shapes=record_shapes)


def recorded_events(recorder: profile) -> list[dict[str, Any]]:
    """What a profiler that has stopped recorded; its file is read and not kept."""
    with tempfile.TemporaryDirectory(prefix="scalescope-") as folder:
        path = Path(folder) / _TRACE
        recorder.export_chrome_trace(str(path))
        return read_events(path)


# ---- What a rank stores of recorded steps on a GPU: their parts, what they would take otherwise, and waits


_PLAIN_S = 1.0
_RECORDED_S = 1.0
_LEAST_FACTOR = 0.02  # on the host's times
_MOST_OPERATIONS = 3  # without a line of code
_REPLAYS = {
    "step_s": Changes(),
    "without_sync_s": Changes(waits=False),
    "without_allocation_s": Changes(allocations=False),
    "fused_optimizer_s": Changes(fused_optimizer=True),
    "without_recomputation_s": Changes(recomputation=False),
    "fast_gpu_s": Changes(kernels=False),
    "fast_host_s": Changes(waits=False, allocations=False, host=False),
}
# The timed launch has a host of its own speed, which is not known here: around that of the steps without a
# profiler in this launch, and one that hardly takes time.
_HOST_SPEEDS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


def step_counts(step_s: float) -> tuple[int, int]:
    """How many steps to run without a profiler and with it; the first of these is not read."""
    plain = max(LEAST_STEPS, min(PLAIN_STEPS, round(_PLAIN_S / max(step_s, 1e-9))))
    return plain, 1 + max(LEAST_STEPS, min(MOST_STEPS, round(_RECORDED_S / max(step_s, 1e-9))))


def store_parts(measurements: Measurements, trace: StepTrace, plain_step_s: float) -> None:
    """The parts of each step, kernels, and how long steps would take without waits, for instance."""
    measurements.samples |= {f"{PREFIX}{name}": times_s for name, times_s in trace.parts.items()}
    measurements.counters |= {**trace.counters, "plain_step_s": plain_step_s}
    replay = Replay(calls=trace.calls, delays=trace.delays)
    fitted = replay.fitted_factor(plain_step_s)
    if fitted is not None:
        factors = sorted({_LEAST_FACTOR, *(max(_LEAST_FACTOR, fitted * speed) for speed in _HOST_SPEEDS)})
        measurements.tables[REPLAYS] = [_replayed(replay, factor) for factor in factors]


def _replayed(replay: Replay, factor: float) -> dict[str, float | int | str | None]:
    """How long a step would take with a host of this speed, unchanged and with changes."""
    times_s = {name: replay.step_s(factor, changes) for name, changes in _REPLAYS.items()}
    return {"host_factor": factor, **times_s}


def store_waits(measurements: Measurements, trace: StepTrace, waits: Synchronizations) -> None:
    """The lines that wait, and what the trace alone knows: operations that wait more often than lines do."""
    rows = waits.rows(WATCHED_STEPS)
    located = sum(waits.sites.values()) / WATCHED_STEPS
    in_trace = sum(trace.waits.values())
    measurements.counters |= {"syncs_were_located": int(waits.can_locate)}
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
