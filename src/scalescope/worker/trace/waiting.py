"""What a rank stores of recorded steps, so that it can be read who waited for whom."""

import math
from collections.abc import Sequence
from typing import Any

from scalescope.catalog.benchmarks.arrivals import LEAST_STEPS, MOST_STEPS
from scalescope.results.traces.rank_trace import read_rank
from scalescope.results.traces.summary import summary_of
from scalescope.worker.training.measurements import Measurements

_WINDOW_S = 1.5  # where a launch counts its steps


def recorded_count(window_s: float | None, step_s: float) -> int:
    """Steps to record, equal on all ranks; the first pays for the profiler's start and is not read."""
    wanted = math.ceil((window_s or _WINDOW_S) / max(step_s, 1e-9))
    return 1 + max(LEAST_STEPS, min(MOST_STEPS, wanted))


def store_arrivals(measurements: Measurements, events: Sequence[dict[str, Any]], *, on_gpu: bool) -> None:
    """The summary of the recorded steps: how long each exchange took, and how much of it was exposed."""
    summary = summary_of(read_rank(events, on_gpu=on_gpu))
    measurements.samples |= summary.samples()
    measurements.counters |= summary.counters()
