"""How many steps are recorded, and what is stored of their parts and of who waits."""

from collections import Counter
from typing import Any

import pytest

from scalescope.catalog.benchmarks import arrivals
from scalescope.catalog.benchmarks.breakdown import LEAST_STEPS, MOST_STEPS, PLAIN_STEPS, WATCHED_STEPS
from scalescope.results.traces import step_parts
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD
from scalescope.results.traces.replay import HostCall, LaunchDelays
from scalescope.results.traces.step_trace import StepTrace
from scalescope.results.traces.summary import TraceSummary
from scalescope.worker.trace.host_lines import Synchronizations, recorded_count, store_arrivals
from scalescope.worker.trace.recorder import step_counts, store_parts, store_waits
from scalescope.worker.training.measurements import Measurements

LINE = ("/home/user/model.py", 31, "forward")
STEPS = 4


@pytest.mark.parametrize(
    ("step_s", "plain", "recorded"),
    [
        (0.0, PLAIN_STEPS, 1 + MOST_STEPS),
        (0.01, PLAIN_STEPS, 1 + MOST_STEPS),
        (0.2, 5, 1 + 5),
        (60.0, LEAST_STEPS, 1 + LEAST_STEPS),
    ],
)
def test_long_steps_are_recorded_less_often(step_s: float, plain: int, recorded: int) -> None:
    assert step_counts(step_s) == (plain, recorded)


def waiting_trace(waits: dict[str, float] | None = None) -> StepTrace:
    """Steps of 13 s of which 3 follow on a wait."""
    calls = [
        call
        for step in range(STEPS)
        for call in (
            HostCall(
                kind="launch",
                before_s=2.0,
                waited_input_s=0.0,
                call_s=0.0,
                kernel_s=10.0,
                stream="compute",
                step=step,
            ),
            HostCall(kind="wait", before_s=0.0, waited_input_s=0.0, call_s=1.0, step=step),
        )
    ]
    return StepTrace(
        parts={step_parts.STEP: [13.0] * STEPS, step_parts.FORWARD: [10.0] * STEPS},
        counters={"kernels_per_step": 1.0},
        waits={} if waits is None else waits,
        calls=calls,
        delays=LaunchDelays(latency_s=0.0, pause_s=0.0),
    )


def test_parts_counters_and_replays_are_stored() -> None:
    measurements = Measurements()
    store_parts(measurements, waiting_trace(), 12.0)
    assert measurements.samples["parts/step_s"] == [13.0] * STEPS
    assert measurements.samples["parts/forward_s"] == [10.0] * STEPS
    counters = measurements.counters
    assert (counters["kernels_per_step"], counters["plain_step_s"]) == (1.0, 12.0)
    rows = measurements.tables["replays"]
    factors = [row["host_factor"] for row in rows]
    assert factors == sorted(factors) and factors[0] == 0.02
    (row,) = (row for row in rows if row["host_factor"] == pytest.approx(0.53, rel=0.01))
    assert row["step_s"] == pytest.approx(12.0, rel=0.01)
    for name in ("without_sync_s", "fast_host_s"):
        assert row[name] == pytest.approx(10.0)
    assert row["without_allocation_s"] == row["step_s"]


def test_without_calls_nothing_is_replayed() -> None:
    measurements = Measurements()
    empty = StepTrace(parts={step_parts.STEP: []}, counters={}, waits={}, calls=[], delays=LaunchDelays())
    store_parts(measurements, empty, 12.0)
    assert "replays" not in measurements.tables


def stored_waits(in_trace: dict[str, float], located: int) -> Measurements:
    measurements = Measurements()
    waits = Synchronizations(sites=Counter({LINE: located}), can_locate=True)
    store_waits(measurements, waiting_trace(in_trace), waits)
    return measurements


def test_lines_that_explain_every_wait_are_all_that_is_stored() -> None:
    measurements = stored_waits({"aten::item": 3.0}, 3 * WATCHED_STEPS)
    (row,) = measurements.tables["synchronizations"]
    assert (row["line"], row["per_step"], row["from_trace"]) == (31, 3.0, False)
    assert measurements.counters["syncs_were_located"] == 1


def test_waits_that_no_line_explains_are_those_of_the_trace() -> None:
    rows = stored_waits({"extension::wait": 4.0, "aten::item": 1.0}, WATCHED_STEPS).tables["synchronizations"]
    by_name = [(row["operation"] or row["line"], row["per_step"], row["from_trace"]) for row in rows]
    assert by_name == [
        (31, 1.0, False),
        ("extension::wait", 4.0, True),
        ("aten::item", 1.0, True),
    ]


@pytest.mark.parametrize(
    ("window_s", "step_s", "steps"),
    [
        (1.0, 0.0, arrivals.MOST_STEPS),
        (1.0, 0.25, 4),
        (None, 0.25, 6),  # a launch that counts its steps has a usual window
        (1.0, 60.0, arrivals.LEAST_STEPS),
    ],
)
def test_arrivals_of_long_steps_are_recorded_less_often(
    window_s: float | None, step_s: float, steps: int
) -> None:
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
    summary = TraceSummary.from_record(measurements.samples)
    assert summary is not None and summary.steps == 2
    assert summary.collective_s is not None
    assert [exchange for step in summary.collective_s for exchange in step] == pytest.approx([0.004, 0.004])
    assert summary.parts["compute_s"] == pytest.approx([0.004, 0.004])
