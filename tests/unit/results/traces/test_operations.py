"""Operations of a trace: what they cost, from which line they come, loops of small ones, and chains."""

from typing import Any

import pytest

from scalescope.results.traces.operations import Operation, Operations
from scalescope.results.traces.rank_trace import TraceTimeline
from scalescope.results.traces.step_trace import StepReader
from tests.builders.traces import (
    AUTOGRAD,
    COMPUTE_STREAM,
    OTHERS_STEP,
    Event,
    Moment,
    event,
    marked,
    on_device,
)

FORWARD_LINE = "model.py(12): forward"
ELEMENTWISE = "vectorized_elementwise_kernel"
FACTORS = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
STEPS = 2


def read(*events: Event) -> Operations:
    """The same in each of two steps."""
    timeline = TraceTimeline(marked(events, STEPS))
    return Operations(timeline, StepReader(timeline), timeline.windows())


def kernel(launched: float, when: Moment, name: str = "gemm", stream: int = COMPUTE_STREAM) -> list[Event]:
    return on_device("kernel", name, launched, when, int(launched * 10), thread=stream)


def operation(name: str, when: Moment, **facts: Any) -> Event:
    return event("cpu_op", name, when, **(facts or FACTORS))


def function(name: str, when: Moment) -> Event:
    return event("python_function", name, when)


def only_row(*events: Event) -> Operation:
    (row,) = read(*events).table()
    return row


# the table


def test_an_operation_has_its_shapes_type_phase_line_and_times() -> None:
    rows = {row.op: row for row in read(*OTHERS_STEP).table()}
    row = rows["aten::addmm"]
    assert (row.shapes, row.dtype, row.phase) == ("[16] [4,8] [8,16]", "bf16", "forward")
    assert (row.module, row.line, row.kernel) == ("Linear", FORWARD_LINE, "bf16_gemm")
    assert row.per_step == 1.0
    assert row.gpu_s == pytest.approx(0.020)
    assert row.host_s == pytest.approx(0.003)
    assert row.flops == 2 * 4 * 8 * 16
    # From 0 to 10 ms: 4 of input, then 2 and a launch's 20 µs because of the host.
    assert row.idle_s == pytest.approx(0.00202)


def test_an_operation_of_backward_has_the_line_of_the_forward_one_with_its_number() -> None:
    rows = {row.op: row for row in read(*OTHERS_STEP).table()}
    row = rows["aten::mm"]
    assert (row.phase, row.module, row.line) == ("backward", "Linear", FORWARD_LINE)
    assert row.gpu_s == pytest.approx(0.030)


def test_a_kernel_outside_of_operations_is_a_row_of_its_own() -> None:
    rows = {row.op: row for row in read(*OTHERS_STEP).table()}
    row = rows["multi_tensor_apply_kernel"]
    assert (row.shapes, row.dtype, row.line, row.flops, row.host_s) == (None, None, None, None, 0.0)
    assert (row.phase, row.per_step) == ("optimizer", 1.0)


def test_rows_begin_with_the_most_expensive_and_transfers_are_none_of_them() -> None:
    times_s = [row.gpu_s for row in read(*OTHERS_STEP).table()]
    assert times_s == pytest.approx([0.030, 0.020, 0.010])


def test_calls_with_the_same_shapes_from_the_same_line_are_one_row() -> None:
    other = operation("aten::mm", (7, 8), **{**FACTORS, "Input Dims": [[4, 4], [4, 4]]})
    one, two = read(
        function("model.py(1): forward", (0, 20)),
        operation("aten::mm", (1, 2)), *kernel(1.5, (10, 30)),
        operation("aten::mm", (4, 6)), *kernel(4.5, (30, 60)),
        other, *kernel(7.5, (60, 70)),
    ).table()  # fmt: skip
    assert (one.shapes, one.per_step, two.shapes, two.per_step) == ("[4,8] [8,16]", 2.0, "[4,4] [4,4]", 1.0)
    assert (one.gpu_s, one.host_s, two.gpu_s) == pytest.approx((0.050, 0.003, 0.010))
    assert (one.flops, two.flops) == (2 * 2 * 4 * 8 * 16, 2 * 4 * 4 * 4)


def test_a_kernel_counts_for_the_innermost_operation_on_the_thread_that_launched_it() -> None:
    row = only_row(
        operation("aten::linear", (0, 10)),
        operation("aten::t", (1, 2)),
        operation("aten::addmm", (3, 8)),
        event("cpu_op", "aten::mul", (4, 6), thread=AUTOGRAD),
        *kernel(5, (20, 30)),
    )
    assert row.op == "aten::addmm"


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        (["c10::BFloat16", "float"], "bf16"),
        (["Scalar", "c10::Half"], "fp16"),
        (["TensorList", "", "float"], "fp32"),
        (["long int"], "int64"),
        (["c10::Float8_e4m3fn"], "float8_e4m3fn"),
        (["Scalar", "GenericList"], None),
        ([], None),
        ([3, None], None),
        ("float", None),
    ],
)
def test_the_type_is_that_of_the_first_tensor(kinds: object, dtype: str | None) -> None:
    facts = {"Input Dims": [[4]], "Input type": kinds}
    assert only_row(operation("aten::add", (1, 3), **facts), *kernel(2, (10, 20))).dtype == dtype


@pytest.mark.parametrize(
    ("dims", "shapes"),
    [
        ([[4, 8], [], [2]], "[4,8] [2]"),
        ([[[4, 8], [2]]], "[[4,8],[2]]"),
        ([], ""),
        ([3, "x"], ""),
        ("x", None),
    ],
)
def test_shapes_are_those_of_tensors_and_lists_of_tensors(dims: object, shapes: str | None) -> None:
    row = only_row(operation("aten::add", (1, 3), **{"Input Dims": dims}), *kernel(2, (10, 20)))
    assert row.shapes == shapes


def test_without_stacks_and_shapes_the_rest_is_told() -> None:
    operations = read(event("cpu_op", "aten::mm", (1, 3)), *kernel(2, (10, 20)))
    (row,) = operations.table()
    assert (operations.has_stacks, operations.has_shapes) == (False, False)
    assert (row.op, row.line, row.module, row.shapes, row.dtype, row.flops) == ("aten::mm", *[None] * 5)
    assert row.gpu_s == pytest.approx(0.010)
    whole = read(*OTHERS_STEP)
    assert (whole.has_stacks, whole.has_shapes) == (True, True)


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("/home/somebody/project/model.py(7): step", "model.py(7): step"),
        ("C:\\Users\\somebody\\model.py(7): step", "model.py(7): step"),
        ("project/model.py(7): step", "model.py(7): step"),
        ("torch/nn/functional.py(7): linear", "train.py(3): main"),
        ("/opt/venv/lib/python3.12/site-packages/library/ops.py(7): op", "train.py(3): main"),
        ("/usr/lib/python3.12/contextlib.py(7): inner", "train.py(3): main"),
        ("threading.py(7): run", "train.py(3): main"),
        ("<built-in function mm>", "train.py(3): main"),
        ("<frozen importlib._bootstrap>(7): _find", "train.py(3): main"),
    ],
)
def test_a_line_is_that_of_the_innermost_function_of_the_user(frame: str, line: str) -> None:
    row = only_row(
        function("train.py(3): main", (0, 10)),
        function(frame, (1, 9)),
        operation("aten::mm", (2, 8)),
        *kernel(5, (20, 30)),
    )
    assert row.line == line


# on the CPU


def test_on_the_cpu_the_innermost_operations_are_the_work() -> None:
    inner, _ = read(
        function("model.py(1): forward", (0, 50)),
        operation("aten::linear", (10, 30)),
        operation("aten::addmm", (12, 28)),
        operation("aten::relu", (30, 35)),
    ).table()
    assert (inner.op, inner.line) == ("aten::addmm", "model.py(1): forward")
    assert (inner.kernel, inner.gpu_s, inner.per_step, inner.idle_s) == (None, None, 1.0, 0.0)
    assert inner.host_s == pytest.approx(0.016)


# loops


def looped(
    times: int, *, name: str = "aten::mm", of: str = "moe.py(30): experts", at: int = 10, on_gpu: bool = True
) -> list[Event]:
    """One call of a function in which an operation repeats every ms.

    On a GPU its kernels take 10 µs, and the host launches each 0.89 ms after the one before ended; a longer
    kernel ends when the first begins.
    """
    events = [function(of, (at - 0.5, at + times))]
    for number in range(at, at + times):
        events.append(operation(name, (number, number + 0.005)))
        if on_gpu:
            events += kernel(number + 0.001, (number + 0.101, number + 0.111))
    return [*events, *(kernel(1, (2, at + 0.101), "before") if on_gpu else [])]


def test_a_loop_over_small_operations_has_its_line_and_what_it_costs() -> None:
    once = [operation("aten::bmm", (9.6, 9.8)), *kernel(9.7, (9.8, 9.9), stream=9)]
    (loop,) = read(*once, *looped(6)).loops()
    assert (loop.op, loop.shapes, loop.line) == ("aten::mm", "[4,8] [8,16]", "moe.py(30): experts")
    assert (loop.times, loop.per_step) == (6, 6.0)
    assert loop.short_s == pytest.approx(6 * 10e-6)
    # Of each pause 0.89 ms come before the launch, and 20 µs are the launch's own.
    assert loop.idle_s == pytest.approx(5 * 0.91e-3)


def test_calls_of_one_line_count_together_and_each_has_its_own_times() -> None:
    (loop,) = read(*looped(4), *looped(6, at=40)[:-2]).loops()
    assert (loop.times, loop.per_step) == (6, 10.0)


@pytest.mark.parametrize(
    "events",
    [
        looped(3),
        looped(6, name="aten::add_"),
        looped(6, of="torch/nn/functional.py(7): linear"),
        [*looped(6), event("user_annotation", "Optimizer.step#SGD.step", (9, 20))],
    ],
    ids=["too few", "no batch of it", "no line of the user's", "of the optimizer"],
)
def test_what_one_call_could_not_do_is_no_loop(events: list[Event]) -> None:
    assert read(*events).loops() == []


def test_different_shapes_are_no_loop() -> None:
    events = looped(6)
    odd = iter(range(1, 7))
    changed = [
        {**each, "args": {**FACTORS, "Input Dims": [[next(odd), 8], [8, 16]]}}
        if each["cat"] == "cpu_op"
        else each
        for each in events
    ]
    assert read(*changed).loops() == []


def test_on_the_cpu_a_loop_costs_its_overhead_and_the_pauses_between() -> None:
    (loop,) = read(*looped(6, on_gpu=False)).loops()
    assert (loop.times, loop.per_step) == (6, 6.0)
    assert loop.short_s == pytest.approx(6 * 5e-6)
    assert loop.idle_s == pytest.approx(5 * 0.995e-3)


# chains


def fusable(*moments: Moment, name: str = ELEMENTWISE) -> list[Event]:
    """Kernels that the host launched one after the other, each from an operation."""
    events = [function("loss.py(5): forward", (0, 9))]
    for number, when in enumerate(moments, 1):
        events += [operation(f"aten::op{number}", (number, number + 0.5)), *kernel(number + 0.1, when, name)]
    return events


def test_elementwise_kernels_in_a_row_are_a_chain() -> None:
    (chain,) = read(*fusable((10, 20), (20, 25), (25.01, 27))).chains()
    assert (chain.length, chain.per_step, chain.line) == (3, 1.0, "loss.py(5): forward")
    assert chain.ops == ("aten::op1", "aten::op2", "aten::op3")
    assert (chain.gpu_s, chain.longest_s) == pytest.approx((0.01699, 0.010))


@pytest.mark.parametrize(
    "events",
    [
        fusable((10, 20), (20, 25)),
        fusable((10, 20), (20, 25), (25.1, 27)),
        fusable((10, 20), (20, 25), (26, 27), name="gemm"),
        [*fusable((10, 20), (20, 25), (26, 27)), *kernel(8, (25, 26))],
        [*fusable((10, 20), (20, 25)), *kernel(8, (25, 26), ELEMENTWISE, stream=9)],
        [*fusable((10, 20), (20, 25), (25, 27)), event("user_annotation", "Optimizer.step#SGD.step", (0, 9))],
    ],
    ids=["two", "a pause", "others", "another between", "another stream", "of the optimizer"],
)
def test_what_one_kernel_could_not_do_is_no_chain(events: list[Event]) -> None:
    assert read(*events).chains() == []
