"""What recorded steps on a GPU consist of: parts that add up, kernels, waits, and calls to run again."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.results.traces import step_parts
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER
from scalescope.results.traces.replay import Changes, HostCall, Replay
from scalescope.results.traces.step_trace import StepTrace, read_steps
from tests.builders.traces import STEP_MS, Event, Moment, cuda_step, event, moved, on_device

STEPS = 3  # the first is not read
CORRELATIONS = 100  # per step
DDP = [recorded for number in range(STEPS) for recorded in cuda_step(number)]
PHASES = [
    event("user_annotation", INPUT, (0, 2)),
    event("user_annotation", FORWARD, (2, 10)),
    event("user_annotation", BACKWARD, (10, 20)),
    event("user_annotation", OPTIMIZER, (20, 25)),
    event("user_annotation", CLEAR, (25, 30)),
]


def launched(at: float, when: Moment, name: str = "gemm") -> list[Event]:
    """A kernel; `repeated` gives it a number of its own."""
    return on_device("kernel", name, at, when, 0)


def wait(when: Moment, name: str = "cudaStreamSynchronize") -> Event:
    return event("cuda_runtime", name, when)


def repeated(events: Sequence[Event], steps: int = STEPS) -> list[Event]:
    """The same in every step of 100 ms. Of a pair of call and kernel both have the same new number."""
    numbered: list[Event] = []
    for step in range(steps):
        number = itertools.count(step * CORRELATIONS)
        for recorded in moved(events, step * STEP_MS):
            arguments = dict(recorded["args"])
            if "correlation" in arguments:
                arguments["correlation"] = next(number) // 2
            numbered.append({**recorded, "args": arguments})
    return numbered


def read(*events: Event, steps: int = STEPS) -> StepTrace:
    """A trace with the usual parts of a step; each step ends with an optimizer's kernel at 90 ms."""
    last = launched(22, (80, 90), "update")
    return read_steps(repeated([*PHASES, *events, *last], steps))


def part(trace: StepTrace, name: str) -> float:
    """In milliseconds, of the last step."""
    return trace.parts[name][-1] * 1e3


def sums(trace: StepTrace) -> list[float]:
    return [sum(trace.parts[name][number] for name in step_parts.PARTS) for number in range(trace.steps)]


def test_each_instant_of_a_step_belongs_to_one_part() -> None:
    trace = read_steps(DDP)
    assert trace.steps == STEPS - 1
    parts_ms = {name: time_s[0] * 1e3 for name, time_s in trace.parts.items()}
    assert parts_ms == pytest.approx(
        {
            step_parts.STEP: 100.0,
            step_parts.FORWARD: 20.0,
            step_parts.BACKWARD: 30.0,
            step_parts.OPTIMIZER: 10.0,
            step_parts.OTHER_KERNELS: 0.0,
            step_parts.COMMUNICATION: 18.0,
            step_parts.COPIES: 5.0,
            step_parts.IDLE_INPUT: 2.0,
            step_parts.IDLE_SYNC: 0.0,
            step_parts.IDLE_HOST: 5.02,  # up to 20 µs from a launch to its start are the launch's own
            step_parts.IDLE_BETWEEN: 0.0,
            step_parts.IDLE_QUEUED: 9.98,
        }
    )
    assert sums(trace) == pytest.approx(trace.parts[step_parts.STEP], abs=1e-12)


def test_a_gap_after_a_wait_counts_for_the_wait() -> None:
    trace = read(*launched(3, (5, 7)), wait((4, 7.01)), *launched(9, (9.01, 80)))
    assert part(trace, step_parts.IDLE_SYNC) == pytest.approx(2.01)
    # From the end of the step before to the first launch the host had not waited.
    assert part(trace, step_parts.IDLE_HOST) == pytest.approx(10.0 + 1.0 + 0.02)


def test_a_wait_that_ended_before_the_gpu_ran_out_of_work_is_not_the_cause() -> None:
    trace = read(*launched(3, (3.01, 7)), wait((4, 6)), *launched(9, (9.01, 80)))
    assert part(trace, step_parts.IDLE_SYNC) == 0.0


def test_a_gap_while_the_host_waits_for_samples_is_input() -> None:
    slow = event("user_annotation", INPUT, (-5, 0))
    trace = read(slow, *launched(3, (3.01, 80)))
    assert part(trace, step_parts.IDLE_INPUT) == pytest.approx(7.0)
    assert part(trace, step_parts.IDLE_HOST) == pytest.approx(5.0 + 1.01)


@pytest.mark.parametrize(
    ("pause_ms", "name"), [(0.02, step_parts.IDLE_BETWEEN), (0.05, step_parts.IDLE_QUEUED)]
)
def test_a_short_pause_between_queued_kernels_is_the_gpu_s_own(pause_ms: float, name: str) -> None:
    trace = read(*launched(3, (3.001, 40)), *launched(4, (40 + pause_ms - 1e-9, 80)))
    assert part(trace, name) == pytest.approx(pause_ms)


@pytest.mark.parametrize(
    ("at", "name"),
    [
        (3, step_parts.FORWARD),
        (12, step_parts.BACKWARD),
        (22, step_parts.OPTIMIZER),
        (27, step_parts.OPTIMIZER),
        (1, step_parts.OTHER_KERNELS),
    ],
)
def test_a_kernel_counts_for_the_part_in_which_the_host_launched_it(at: float, name: str) -> None:
    usual = part(read(), name)
    assert part(read(*launched(at, (50, 60))), name) == pytest.approx(usual + 10.0)


def test_kernels_at_the_same_time_count_once() -> None:
    trace = read(*launched(3, (40, 60)), *launched(12, (50, 70)))
    assert part(trace, step_parts.FORWARD) == pytest.approx(20.0)
    assert part(trace, step_parts.BACKWARD) == pytest.approx(10.0)
    assert sums(trace) == pytest.approx(trace.parts[step_parts.STEP], abs=1e-12)


LENGTHS = st.tuples(st.floats(0, 99), st.floats(0, 30))
LAUNCHES = st.lists(st.tuples(st.floats(0, 29), st.floats(0, 40), st.floats(0, 30)), max_size=6)


@settings(max_examples=30)
@given(LAUNCHES, LAUNCHES, st.lists(LENGTHS, max_size=3), st.lists(LENGTHS, max_size=3))
def test_parts_add_up_to_the_step_whatever_happens_in_it(
    kernels: list[tuple[float, float, float]],
    copies: list[tuple[float, float, float]],
    waits: list[tuple[float, float]],
    waited: list[tuple[float, float]],
) -> None:
    events = [
        *(e for at, later, long in kernels for e in launched(at, (at + later, at + later + long))),
        *(
            e
            for at, later, long in copies
            for e in on_device("gpu_memcpy", "Memcpy HtoD", at, (at + later, at + later + long), 0)
        ),
        *(wait((at, at + long)) for at, long in waits),
        *(event("user_annotation", INPUT, (at, at + long)) for at, long in waited),
    ]
    trace = read(*events)
    assert sums(trace) == pytest.approx(trace.parts[step_parts.STEP], abs=1e-9)
    assert all(time_s >= -1e-9 for times_s in trace.parts.values() for time_s in times_s)


@pytest.mark.parametrize("events", [[], [event("kernel", "gemm", (0, 1))], repeated(PHASES, 1)])
def test_a_trace_without_a_complete_step_has_none(events: list[Event]) -> None:
    trace = read_steps(events)
    assert (trace.steps, trace.counters, trace.calls) == (0, {}, [])
    assert not trace.waits


# operations that wait


def test_a_wait_is_known_by_the_innermost_operation_that_made_it() -> None:
    trace = read(
        event("cpu_op", "aten::item", (4, 7)),
        event("cpu_op", "aten::_local_scalar_dense", (4.1, 6.9)),
        event("cpu_op", "aten::mm", (4.2, 6.95), thread=7),
        wait((4.5, 6.5)),
        *launched(9, (9.01, 80)),
    )
    assert trace.waits == {"aten::_local_scalar_dense": 1.0}


def test_a_wait_outside_operations_is_known_by_its_call() -> None:
    trace = read(event("cpu_op", "aten::mm", (4, 5)), wait((6, 7), "cudaDeviceSynchronize"))
    assert trace.waits == {"cudaDeviceSynchronize": 1.0}


def test_a_wait_for_a_batch_is_not_one_of_the_model() -> None:
    assert not read(wait((0.5, 1.5))).waits


# counters


def test_kernels_are_counted_per_step() -> None:
    counters = read_steps(DDP).counters
    assert counters["kernels_per_step"] == 3
    assert counters["optimizer_kernels"] == 1
    assert counters["kernel_median_s"] == pytest.approx(0.020)
    assert counters["matrix_product_s"] == pytest.approx(0.050)


def test_elementwise_kernels_are_those_of_the_model() -> None:
    name = "vectorized_elementwise_kernel"
    trace = read(*launched(3, (40, 41), name), *launched(4, (41, 43), name), *launched(21, (44, 54), name))
    assert trace.counters["elementwise_kernels"] == 2
    assert trace.counters["elementwise_s"] == pytest.approx(0.003)
    assert trace.counters["optimizer_kernels"] == 2


def test_copies_of_pageable_memory_are_counted_with_their_bytes() -> None:
    pageable = on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 3, (4, 6), 0, bytes=4000)
    pinned = on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3, (6, 7), 0, bytes=100)
    counters = read(*pageable, *pinned).counters
    assert counters["pageable_copies"] == 1
    assert counters["pageable_bytes"] == 4000
    assert counters["pageable_s"] == pytest.approx(0.002)


def test_requests_for_memory_are_counted() -> None:
    memory = (wait((3, 4), "cudaMalloc"), wait((4, 5), "cudaMalloc"), wait((5, 6), "cudaFree"))
    counters = read(*memory, *launched(9, (9.01, 80))).counters
    assert (counters["allocations_per_step"], counters["releases_per_step"]) == (2, 1)


def test_time_in_waits_counts_as_busy_while_the_gpu_computes() -> None:
    """Of a wait from 4 to 9 ms the GPU is busy from 5 to 7; a wait for a batch is input."""
    trace = read(wait((0.5, 1.5)), *launched(0, (1, 2)), *launched(3, (5, 7)), wait((4, 9)))
    assert trace.counters["busy_waits_s"] == pytest.approx(0.002)


# calls to run again


def calls_of_step(trace: StepTrace) -> list[HostCall]:
    last = max(call.step for call in trace.calls)
    return [call for call in trace.calls if call.step == last]


def test_calls_have_their_kinds_their_times_and_their_kernels() -> None:
    trace = read(wait((0.5, 1)), *launched(3, (4, 7)), wait((5, 7.5)), wait((8, 9), "cudaMalloc"))
    calls = calls_of_step(trace)
    assert [call.kind for call in calls] == ["input_wait", "launch", "wait", "allocation", "launch"]
    assert [call.kernel_s * 1e3 for call in calls] == pytest.approx([0.0, 3.0, 0.0, 0.0, 10.0])
    # Of a wait what it takes after the GPU is done; a step of the host is from the end of one CLEAR on.
    assert calls[2].call_s * 1e3 == pytest.approx(0.5)
    assert calls[2].before_s * 1e3 == pytest.approx(5 - 3.1)
    assert calls[0].waited_input_s * 1e3 == pytest.approx(0.5)
    assert calls[0].before_s * 1e3 == pytest.approx(100 - 22.1)


def test_a_launch_that_waits_for_room_in_the_queue_takes_as_long_as_others() -> None:
    blocked = event("cuda_runtime", "cudaLaunchKernel", (15, 19))
    calls = calls_of_step(read(*launched(3, (4, 7)), *launched(4, (7, 8)), blocked))
    assert max(call.call_s for call in calls) * 1e3 == pytest.approx(0.3)


def test_transfers_follow_on_compute_and_the_optimizer_on_transfers() -> None:
    calls = calls_of_step(read_steps(DDP))
    copied, forward, backward, sent, update = calls
    assert sent.stream != forward.stream == backward.stream == update.stream == copied.stream
    assert sent.follows == (forward.stream,)
    assert update.follows == (sent.stream,)
    assert (forward.follows, backward.follows) == ((), ())


def replay_of(trace: StepTrace) -> Replay:
    return Replay(calls=trace.calls, delays=trace.delays)


def waiting_trace() -> StepTrace:
    """A step of 100 ms: the host computes 4 ms, waits for a kernel of 20, computes 37 and waits for 39."""
    last = event("user_annotation", CLEAR, (99.8, 100))
    return read_steps(
        repeated(
            [
                event("user_annotation", FORWARD, (2, 99)),
                *launched(3, (3.2, 23.2)),
                wait((4, 23.2)),
                *launched(60, (60.2, 99)),
                wait((61, 99)),
                last,
            ],
            6,
        )
    )


def test_recorded_calls_run_again_take_as_long_as_recorded() -> None:
    trace = waiting_trace()
    replay = replay_of(trace)
    recorded_s = trace.parts[step_parts.STEP][-1]
    assert recorded_s == pytest.approx(0.1)
    assert replay.step_s(1.0) == pytest.approx(recorded_s, rel=0.005)


def test_recorded_calls_without_their_waits_take_what_host_or_gpu_need() -> None:
    replay = replay_of(waiting_trace())
    without_s = replay.step_s(1.0, Changes(waits=False))
    assert without_s == pytest.approx(0.0588, rel=0.01)  # the kernels, which now take longer than the host


def test_pauses_of_the_gpu_are_read_from_the_trace() -> None:
    trace = read(*launched(3, (3.105, 40)), *launched(4, (40.004, 79.996)))
    assert trace.delays.latency_s == pytest.approx(5e-6, rel=1e-3)
    assert trace.delays.pause_s == pytest.approx(4e-6, rel=1e-3)


def product(start: float, end: float) -> Event:
    """An operation with shapes: 2 · 4 · 8 · 16 operations."""
    shapes = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    return event("cpu_op", "aten::mm", (start, end), **shapes)


def test_operations_are_counted_per_step_and_the_optimizer_s_are_not_the_model_s() -> None:
    trace = read(
        product(3, 4), *launched(3.5, (30, 35)),
        product(11, 12), *launched(11.5, (35, 40)),
        product(21, 22), *launched(21.5, (40, 45)),
        *launched(13, (45, 50)),
    )  # fmt: skip
    facts = trace.counters
    assert facts["device_flops"] == facts["device_flops/bf16"] == 3 * 1024
    assert facts["model_flops"] == 2 * 1024
    assert (facts["linked_product_s"], facts["unlinked_product_s"]) == (
        pytest.approx(0.015), pytest.approx(0.005)
    )  # fmt: skip
    assert "device_flops" not in read(*launched(3.5, (30, 35))).counters
