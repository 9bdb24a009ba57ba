"""A rank's trace: what a step computes, sends, copies and waits for, on the CPU and on a GPU."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.results.traces.events import CLEAR, COMPUTE, INPUT
from scalescope.results.traces.rank_trace import DATA, HOST, QUEUED, TracedStep, read_rank
from tests.builders.traces import (
    BACKWARD_OPERATION,
    GLOO,
    TRAINING,
    Event,
    cpu_step,
    cuda_step,
    event,
    moved,
    on_device,
    steps_of,
)

CUDA = [recorded_event for number in range(3) for recorded_event in cuda_step(number)]


def only_step(events: list[Event]) -> TracedStep:
    """The step from 100 ms on, after one that is left out."""
    (step,) = read_rank(steps_of(cpu_step(()), 1) + moved(events, 100), on_gpu=False).steps
    return step


def empty_step(*events: Event) -> list[Event]:
    return [*events, event("user_annotation", CLEAR, (99, 100))]


def test_a_step_on_the_cpu_is_taken_apart() -> None:
    step = only_step(cpu_step())
    assert step.time_s == pytest.approx(0.100)
    assert step.compute_s == pytest.approx(0.065)
    assert step.communication_s == pytest.approx(0.040)
    assert step.overlap_s == pytest.approx(0.020)
    assert step.exposed_s == pytest.approx(0.020)
    assert step.copy_s == 0.0
    assert step.idle_s == pytest.approx({DATA: 0.010, HOST: 0.005, QUEUED: 0.0})


def test_a_step_on_a_gpu_is_taken_apart_by_what_the_device_did() -> None:
    rank = read_rank(CUDA, on_gpu=True)
    assert rank.on_gpu
    for step in rank.steps:
        assert step.time_s == pytest.approx(0.100)
        assert step.compute_s == pytest.approx(0.060)
        assert step.communication_s == pytest.approx(0.030)
        assert step.overlap_s == pytest.approx(0.012)
        assert step.exposed_s == pytest.approx(0.018)
        assert step.copy_s == pytest.approx(0.005)
        # Backward is what its operations started: the host is done at 20 ms, the device sends until 80.
        assert step.backward_compute == pytest.approx((0.037, 0.067))
        assert step.communication == pytest.approx((0.055, 0.085))
        assert step.span_overlap == pytest.approx(12 / 30)
        (collective,) = step.collectives
        assert collective.name.startswith("ncclDevKernel_AllReduce")
        assert collective.size_bytes == 2000
        assert (collective.time_s, collective.exposed_s) == pytest.approx((0.030, 0.018))
        # 95 to 102: nothing was asked for, 100 to 102 under the name of input; the rest was on its way.
        assert step.idle_s == pytest.approx({DATA: 0.002, HOST: 0.005, QUEUED: 0.002 + 0.003 + 0.005})


def test_backward_and_its_transfers_are_placed_within_the_step() -> None:
    step = only_step(cpu_step([(40, 50), (60, 90)]))
    assert step.backward_compute == pytest.approx((0.030, 0.070))
    assert step.communication == pytest.approx((0.040, 0.090))
    assert step.span_overlap == pytest.approx(30 / 50)
    assert step.overlap_s / step.communication_s == pytest.approx(20 / 40)


@pytest.mark.parametrize(("sent", "share"), [((30, 60), 1.0), ((75, 90), 0.0), ((60, 80), 0.5)])
def test_overlap_as_ddp_counts_it_ends_with_backward(sent: tuple[float, float], share: float) -> None:
    assert only_step(cpu_step([sent])).span_overlap == pytest.approx(share)


def test_transfers_that_backward_did_not_start_are_outside_its_span() -> None:
    step = only_step(cpu_step([(12, 20), (60, 80), (91, 94)]))
    assert step.communication_s == pytest.approx(0.031)
    assert step.communication == pytest.approx((0.060, 0.080))
    assert step.span_overlap == pytest.approx(0.5)


def test_transfers_outside_backward_alone_have_no_span() -> None:
    step = only_step(cpu_step([(12, 20), (91, 94)]))
    assert step.communication_s == pytest.approx(0.011)
    assert (step.communication, step.span_overlap) == (None, None)


@pytest.mark.parametrize(
    ("sent", "ends"),
    [((12, 60), 30), ((50, 98), 90), ((92, 99), 95), ((50, 80), 80), ((5, 25), 25), ((97, 99), 99)],
    ids=["forward", "backward", "optimizer", "within backward", "input", "clear"],
)
def test_gloo_closes_an_event_at_the_latest_with_the_part_it_begins_in(
    sent: tuple[float, float], ends: float
) -> None:
    (collective,) = only_step(cpu_step([sent])).collectives
    assert collective.time_s == pytest.approx((ends - sent[0]) / 1e3)


def test_without_transfers_or_backward_the_overlap_is_unknown() -> None:
    assert only_step(cpu_step(())).span_overlap is None
    alone = empty_step(event("user_annotation", "gloo:all_reduce", (50, 60)))
    assert only_step(alone).span_overlap is None
    assert only_step(alone).exposed_s == pytest.approx(0.010)


def test_the_first_step_is_left_out() -> None:
    slow = [event("cpu_op", "profiler start", (1, 29)), *cpu_step([(31, 89)])]
    rank = read_rank([*slow, *moved(steps_of(cpu_step(), 2), 100)], on_gpu=False)
    assert [step.communication_s for step in rank.steps] == pytest.approx([0.040, 0.040])
    assert "profiler start" not in {name for name, _, _ in rank.kernels}


@pytest.mark.parametrize(
    "events",
    [[], steps_of(cpu_step(), 1), [{"ph": "M", "ts": 0, "dur": 0}]],
    ids=["none", "the first", "other"],
)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_trace_without_steps_has_none(events: list[Event], on_gpu: bool) -> None:
    rank = read_rank(events, on_gpu=on_gpu)
    assert (rank.on_gpu, rank.steps, rank.kernels) == (on_gpu, (), ())


def test_steps_are_distinguished_by_what_each_sends() -> None:
    events = cpu_step() + moved(cpu_step([(50, 60)]), 100) + moved(cpu_step([(50, 60), (60, 90)]), 200)
    first, second = read_rank(events, on_gpu=False).steps
    assert (len(first.collectives), len(second.collectives)) == (1, 2)
    assert [first.communication_s, second.communication_s] == pytest.approx([0.010, 0.040])


def test_on_a_gpu_a_step_ends_when_its_own_work_is_done() -> None:
    late = on_device("kernel", "optimizer", 28, (110, 115), 99)
    first, second = read_rank([*CUDA, *moved(late, 100)], on_gpu=True).steps
    assert [first.time_s, second.time_s] == pytest.approx([0.120, 0.080])


def test_a_copy_for_the_next_step_does_not_prolong_this_one() -> None:
    ahead = on_device("gpu_memcpy", "Memcpy HtoD", 29, (90, 99), 99)
    first, second = read_rank([*CUDA, *moved(ahead, 100)], on_gpu=True).steps
    assert [first.time_s, second.time_s] == pytest.approx([0.100, 0.100])
    assert [first.copy_s, second.copy_s] == pytest.approx([0.005, 0.005 + 0.004])


def test_a_copy_behind_compute_costs_nothing() -> None:
    hidden = on_device("gpu_memcpy", "Memcpy DtoD", 12, (13, 20), 99)
    step, _ = read_rank([*CUDA, *moved(hidden, 100)], on_gpu=True).steps
    assert step.copy_s == pytest.approx(0.005)


def test_clearing_memory_counts_with_the_copies() -> None:
    cleared = on_device("gpu_memset", "Memset", 6, (10, 11), 99)
    step, _ = read_rank([*CUDA, *moved(cleared, 100)], on_gpu=True).steps
    assert step.compute_s == pytest.approx(0.060)
    assert step.copy_s == pytest.approx(0.006)


def test_a_launch_through_the_driver_counts_like_one_through_the_runtime() -> None:
    through_the_driver = [
        {**recorded_event, "cat": "cuda_driver"}
        if recorded_event["cat"] == "cuda_runtime"
        else recorded_event
        for recorded_event in CUDA
    ]
    assert read_rank(through_the_driver, on_gpu=True) == read_rank(CUDA, on_gpu=True)


def test_work_whose_launch_is_not_in_the_trace_was_started_when_it_ran() -> None:
    without_launches = [recorded_event for recorded_event in CUDA if recorded_event["cat"] != "cuda_runtime"]
    assert [step.idle_s[QUEUED] for step in read_rank(without_launches, on_gpu=True).steps] == [0.0, 0.0]
    stray = [*CUDA, event("kernel", "stray", (1000, 1001))]
    assert read_rank(stray, on_gpu=True).steps == read_rank(CUDA, on_gpu=True).steps


def test_host_annotations_of_nccl_are_not_transfers() -> None:
    announced = empty_step(
        event("user_annotation", "nccl:all_reduce", (10, 20)),
        event("cpu_op", "c10d::allreduce_", (30, 40)),
        event("cpu_op", "record_param_comms", (50, 60)),
    )
    step = only_step(announced)
    assert (step.communication_s, step.compute_s) == (0.0, 0.0)
    assert step.idle_s[HOST] == pytest.approx(0.100)


@pytest.mark.parametrize(
    "name",
    [
        BACKWARD_OPERATION,
        "AddmmBackward0",
        "torch::autograd::AccumulateGrad",
        "torch::autograd::CppNode<Hook>",
        "c10d::allreduce_",
        "_c10d_functional::wait_tensor",
        "record_param_comms",
    ],
)
def test_wrappers_around_operations_are_no_compute(name: str) -> None:
    step = only_step(
        empty_step(event("cpu_op", name, (10, 50)), event("cpu_op", "aten::convolution_backward", (20, 25)))
    )
    assert step.compute_s == pytest.approx(0.005)


def test_operations_on_gloos_threads_are_no_compute() -> None:
    step = only_step(
        empty_step(
            event("user_annotation", "gloo:all_reduce", (10, 50)),
            event("cpu_op", "aten::add_", (20, 30), thread=GLOO),
            event("cpu_op", "aten::mm", (45, 60)),
        )
    )
    assert (step.compute_s, step.communication_s, step.overlap_s) == pytest.approx((0.015, 0.040, 0.005))


def test_the_device_of_the_trial_decides_what_is_compute() -> None:
    on_gpu = read_rank(steps_of(cpu_step()), on_gpu=True)
    assert (on_gpu.on_gpu, on_gpu.kernels) == (True, ())
    assert [step.compute_s for step in on_gpu.steps] == [0.0, 0.0]
    assert not read_rank(CUDA, on_gpu=False).on_gpu


def test_waiting_for_samples_counts_only_where_nothing_else_happens() -> None:
    step = only_step(
        empty_step(event("user_annotation", INPUT, (0, 50)), event("cpu_op", "aten::stack", (20, 40)))
    )
    assert step.idle_s == pytest.approx({DATA: 0.030, HOST: 0.050, QUEUED: 0.0})


def test_what_a_paced_model_sleeps_is_compute() -> None:
    step = only_step(empty_step(event("user_annotation", COMPUTE, (10, 40))))
    assert step.compute_s == pytest.approx(0.030)


def test_every_exchange_has_its_size_its_time_and_what_nothing_hides() -> None:
    first, second = only_step(cpu_step([(60, 80), (40, 50)])).collectives
    assert (first.name, first.size_bytes) == ("all_reduce", 4000)
    assert (first.start_s, first.time_s, first.exposed_s) == pytest.approx((0.040, 0.010, 0.0))
    assert (second.start_s, second.time_s, second.exposed_s) == pytest.approx((0.060, 0.020, 0.010))


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"Input Dims": [[10, 20]], "Input type": ["float"]}, 800),
        ({"Input Dims": [[10]], "Input type": ["c10::BFloat16"]}, 20),
        ({"Input Dims": [[10]], "Input type": ["c10::Half"]}, 20),
        ({"Input Dims": [[10]], "Input type": ["long int"]}, 80),
        ({"Input Dims": [[[10]]], "Input type": ["double"]}, 80),
        ({"Input Dims": [[10], [5]], "Input type": ["float", "double"]}, 80),
        ({"Input Dims": [[[10], [5]]], "Input type": ["float"]}, 60),
        ({"Input Dims": [[10], []], "Input type": ["float", "Scalar"]}, 40),
        ({"Input Dims": [[]], "Input type": ["float"]}, 4),
        ({"In msg nelems": 10, "dtype": "Float"}, 40),
        ({"In msg nelems": 10, "dtype": "Byte"}, 10),
        ({"In msg nelems": 10, "dtype": "Quaternion"}, None),
        ({"In msg nelems": 10}, None),
        ({"Input Dims": [[10]], "Input type": ["quaternion"]}, None),
        ({"Input Dims": [[10]]}, None),
        ({"Input Dims": [], "Input type": []}, None),
        ({"Input Dims": [""], "Input type": [""]}, None),
        ({}, None),
    ],
)
def test_the_size_of_an_exchange_is_known_or_none(arguments: dict[str, Any], size: int | None) -> None:
    events = empty_step(event("user_annotation", "gloo:broadcast", (10, 20), **arguments))
    (collective,) = only_step(events).collectives
    assert (collective.name, collective.size_bytes) == ("broadcast", size)


def test_operations_are_counted_and_wrappers_are_none_of_them() -> None:
    rank = read_rank(steps_of(cpu_step()), on_gpu=False)
    kernels = {name: (time_s, count) for name, time_s, count in rank.kernels}
    assert kernels["aten::mm"] == pytest.approx((0.080, 2))
    assert kernels["aten::addmm"] == pytest.approx((0.040, 2))
    assert kernels["aten::add_"] == pytest.approx((0.010, 2))
    assert set(kernels) == {"aten::mm", "aten::addmm", "aten::add_"}


def test_operations_of_two_threads_are_not_inside_each_other() -> None:
    overlapping = empty_step(
        event("cpu_op", "forward", (0, 50)),
        event("cpu_op", "backward", (10, 40), thread=3),
        event("cpu_op", "inner", (20, 30), thread=3),
    )
    times = {name: time_s for name, time_s, _ in read_rank(steps_of(overlapping, 2), on_gpu=False).kernels}
    assert times == pytest.approx({"forward": 0.050, "backward": 0.020, "inner": 0.010})


def test_operations_inside_operations_inside_operations() -> None:
    nested = empty_step(
        event("cpu_op", "outer", (0, 50)),
        event("cpu_op", "middle", (0, 40)),
        event("cpu_op", "inner", (10, 20)),
        event("cpu_op", "inner", (20, 25)),
        event("cpu_op", "beside", (40, 50)),
    )
    rank = read_rank(steps_of(nested, 2), on_gpu=False)
    times = {name: time_s for name, time_s, _ in rank.kernels}
    assert times == pytest.approx({"outer": 0.0, "middle": 0.025, "inner": 0.015, "beside": 0.010})
    assert [name for name, _, _ in rank.kernels] == ["middle", "inner", "beside", "outer"]


def test_kernels_are_sorted_by_their_time_and_transfers_are_none_of_them() -> None:
    kernels = read_rank(CUDA, on_gpu=True).kernels
    assert [(name, count) for name, _, count in kernels] == [
        ("backward_gemm", 2),
        ("forward_gemm", 2),
        ("optimizer", 2),
    ]
    assert [time_s for _, time_s, _ in kernels] == pytest.approx([0.060, 0.040, 0.020])


def test_the_picture_of_a_step_begins_at_its_own_zero() -> None:
    spans = only_step(cpu_step()).spans
    assert spans["communication"] == [pytest.approx((0.050, 0.090))]
    assert spans["compute"] == [pytest.approx((0.010, 0.070)), pytest.approx((0.090, 0.095))]
    assert spans["copy"] == []


MOMENTS = st.lists(st.tuples(st.integers(0, 130), st.integers(0, 60)), max_size=8)


@settings(max_examples=30)
@given(MOMENTS, MOMENTS, MOMENTS)
def test_the_parts_of_a_step_add_up_to_it(
    computed: list[tuple[int, int]], sent: list[tuple[int, int]], waited: list[tuple[int, int]]
) -> None:
    events = empty_step(
        *(event("cpu_op", "aten::mm", (start, start + length)) for start, length in computed),
        *(event("user_annotation", "gloo:send", (start, start + length)) for start, length in sent),
        *(event("user_annotation", INPUT, (start, start + length)) for start, length in waited),
    )
    step = only_step(events)
    assert step.compute_s + step.exposed_s + step.copy_s + sum(step.idle_s.values()) == pytest.approx(0.1)
    assert 0.0 <= step.overlap_s <= min(step.compute_s, step.communication_s) + 1e-12
    assert all(time_s >= -1e-12 for time_s in step.idle_s.values())


def test_sends_on_the_rank_s_own_thread_do_not_hide_what_it_computes() -> None:
    sent = {**event("user_annotation", "gloo:send", (5, 8)), "tid": TRAINING}
    step = only_step([*cpu_step(()), sent])
    assert step.compute_s == pytest.approx(only_step(cpu_step(())).compute_s)
    assert step.communication_s == pytest.approx(0.003)
