"""Torch's profiler in a rank, and the events that it recorded."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalescope.results.traces.events import read_events

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
