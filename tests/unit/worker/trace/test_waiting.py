"""How many steps are recorded to learn who waits, and what is stored of them."""

from typing import Any

import pytest

from scalescope.catalog.benchmarks.arrivals import LEAST_STEPS, MOST_STEPS
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD
from scalescope.results.traces.summary import TraceSummary
from scalescope.worker.trace.waiting import recorded_count, store_arrivals
from scalescope.worker.training.measurements import Measurements


@pytest.mark.parametrize(
    ("window_s", "step_s", "steps"),
    [
        (1.0, 0.0, MOST_STEPS),
        (1.0, 0.25, 4),
        (None, 0.25, 6),  # a launch that counts its steps has a usual window
        (1.0, 60.0, LEAST_STEPS),
    ],
)
def test_long_steps_are_recorded_less_often(window_s: float | None, step_s: float, steps: int) -> None:
    assert recorded_count(window_s, step_s) == 1 + steps


def _event(name: str, start: float, end: float, *, category: str = "user_annotation", thread: int = 1) -> Any:
    """In milliseconds."""
    return {"name": name, "cat": category, "ts": start * 1e3, "dur": (end - start) * 1e3, "tid": thread}


def test_the_steps_of_a_trace_are_stored_as_analysis_reads_them() -> None:
    events = []
    for start in (0.0, 10.0, 20.0):
        events += [
            _event(FORWARD, start, start + 4),
            _event("aten::mm", start, start + 4, category="cpu_op"),
            _event(BACKWARD, start + 4, start + 9),
            _event("gloo:all_reduce", start + 5, start + 9, thread=2),
            _event(CLEAR, start + 9, start + 10),
        ]
    measurements = Measurements()
    store_arrivals(measurements, events, on_gpu=False)
    summary = TraceSummary.from_record(measurements.samples, measurements.counters)
    assert summary is not None and summary.steps == 2
    assert summary.collective_s is not None
    assert [exchange for step in summary.collective_s for exchange in step] == pytest.approx([0.004, 0.004])
    assert summary.parts["compute_s"] == pytest.approx([0.004, 0.004])
