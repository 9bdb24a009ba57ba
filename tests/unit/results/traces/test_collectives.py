"""Exchanges of a trace: their kinds, groups and sizes, what nothing hides, and in which step they began."""

from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.results.traces.collectives import Exchange, Group, bus_factor, exchanges, groups_of
from scalescope.results.traces.rank_trace import TraceTimeline
from tests.builders.traces import (
    ALL_REDUCE,
    AUTOGRAD,
    COMPUTE_STREAM,
    NCCL_STREAM,
    OTHERS_STEP,
    Event,
    Moment,
    event,
    marked,
    on_device,
    sized,
)

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def sent(
    launched: float,
    when: Moment,
    facts: Mapping[str, Any],
    *,
    name: str = "ncclDevKernel_Generic",
    **more: Any,
) -> list[Event]:
    """A kernel of NCCL; launches at different times have different numbers."""
    return on_device("kernel", name, launched, when, int(launched * 10), thread=NCCL_STREAM, **more, **facts)


def computed(launched: float, when: Moment, **more: Any) -> list[Event]:
    return on_device("kernel", "gemm", launched, when, int(launched * 10), thread=COMPUTE_STREAM, **more)


def collective(name: str, group: str = "0", **facts: Any) -> dict[str, Any]:
    return {"Collective name": name, "Process Group Name": group, **facts}


def read(*events: Event, steps: int = 1) -> list[Exchange]:
    timeline = TraceTimeline(marked(events, steps))
    return exchanges(timeline.sent, timeline.annotations, timeline.compute, timeline.host_steps)


def groups(job: Mapping[str, Any], *facts: Mapping[str, Any]) -> dict[str, Group]:
    """Of exchanges one after the other, and what the trace says of the job."""
    events = [e for n, each in enumerate(facts) for e in sent(10 + n, (20 + n, 21 + n), each)]
    return groups_of({"distributedInfo": job}, TraceTimeline(marked(events)).sent)


def short(value: object) -> str:
    return repr(value)[:20]


def test_an_exchange_has_its_kind_group_size_and_time_in_each_step() -> None:
    first, second = read(*OTHERS_STEP, steps=2)
    assert (first.step, second.step) == (0, 1)
    for exchange in (first, second):
        assert (exchange.kind, exchange.group, exchange.size_bytes) == ("all_reduce", "0", 2000)
        assert exchange.time_s == pytest.approx(0.040)
        assert exchange.exposed_s == pytest.approx(0.020)  # compute hides it until 60 ms
        assert (exchange.splits, exchange.queued_s, exchange.beside_compute) == (None, 0.0, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("broadcast", "broadcast"),
        ("send", "send_recv"),
        ("recv", "send_recv"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("something new", "other"),
    ],
)
def test_a_kind_is_that_of_the_collective_s_own_name(name: str, kind: str) -> None:
    (exchange,) = read(*sent(10, (20, 30), collective(name)))
    assert exchange.kind == kind


@pytest.mark.parametrize(
    ("kernel", "annotation", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", None, "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", None, "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL", None, "all_gather"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", None, "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", None, "broadcast"),
        (SEND_RECV, None, "send_recv"),
        (SEND_RECV, "nccl:all_to_all", "all_to_all"),
        ("ncclDevKernel_Generic", "nccl:_all_gather_base", "all_gather"),
        ("ncclDevKernel_Generic", None, "other"),
    ],
)
def test_without_facts_a_kernel_or_the_annotation_around_its_launch_tells_the_kind(
    kernel: str, annotation: str | None, kind: str
) -> None:
    around = [] if annotation is None else [event("user_annotation", annotation, (9, 11), thread=AUTOGRAD)]
    (exchange,) = read(*around, *sent(10, (20, 30), {}, name=kernel, launcher=AUTOGRAD))
    assert (exchange.kind, exchange.group, exchange.size_bytes) == (kind, "", None)


@pytest.mark.parametrize(("when", "thread"), [((8, 9), AUTOGRAD), ((9, 11), 99)], ids=["before", "elsewhere"])
def test_an_annotation_tells_the_kind_of_what_its_own_thread_launches_in_it(
    when: Moment, thread: int
) -> None:
    announced = event("user_annotation", "nccl:all_to_all", when, thread=thread)
    (exchange,) = read(announced, *sent(10, (20, 30), {}, name=SEND_RECV, launcher=AUTOGRAD))
    assert exchange.kind == "send_recv"


@pytest.mark.parametrize(
    ("name", "size"),
    [("allreduce", 400), ("_allgather_base", 1600), ("_reduce_scatter_base", 400), ("all_to_allv", 400)],
)
def test_the_size_is_that_of_the_whole_array(name: str, size: int) -> None:
    """A gather ends with it, everything else begins with it."""
    counts: dict[str, Any] = {"In msg nelems": 100, "Out msg nelems": 400, "dtype": "Float"}
    (exchange,) = read(*sent(10, (20, 30), collective(name, **counts)))
    assert exchange.size_bytes == size


@pytest.mark.parametrize("count", [-5, 1 << 60, 10**400, "100", 1.5, [], None], ids=short)
def test_a_size_that_cannot_be_is_unknown(count: Any) -> None:
    facts = {"In msg nelems": count, "dtype": "Float"}
    (exchange,) = read(*sent(10, (20, 30), collective("allreduce", **facts)))
    assert exchange.size_bytes is None


@pytest.mark.parametrize("facts", [{}, {"dtype": "Quaternion"}])
def test_a_size_without_a_known_type_is_unknown(facts: dict[str, Any]) -> None:
    (exchange,) = read(*sent(10, (20, 30), collective("allreduce", **{"In msg nelems": 100}, **facts)))
    assert exchange.size_bytes is None


@pytest.mark.parametrize(
    ("recorded", "splits"),
    [
        ("[100, 300]", (100, 300)),
        ([100, 300], (100, 300)),
        ("[]", None),
        ("[100, 300, ...]", None),
        ("[100, 1.5]", None),
        ([100, -1], None),
        ([100, 10**400], None),
        ('{"0": 100}', None),
        (100, None),
    ],
    ids=short,
)
def test_unequal_splits_are_told_rank_by_rank(recorded: Any, splits: tuple[int, ...] | None) -> None:
    (exchange,) = read(*sent(10, (20, 30), collective("all_to_allv", **{"In split size": recorded})))
    assert exchange.splits == splits


def test_time_that_two_exchanges_share_counts_for_the_first() -> None:
    first, second = read(
        *sent(10, (40, 60), collective("allreduce", "0")),
        *sent(11, (50, 80), collective("allreduce", "1")),
        *computed(12, (70, 75)),
    )
    assert [first.time_s, second.time_s] == pytest.approx([0.020, 0.030])
    assert [first.exposed_s, second.exposed_s] == pytest.approx([0.020, 0.015])


def test_exchanges_come_in_the_order_of_the_program_not_of_the_device() -> None:
    later, sooner = sent(11, (20, 30), collective("broadcast")), sent(10, (40, 50), collective("allreduce"))
    assert [exchange.kind for exchange in read(*later, *sooner)] == ["all_reduce", "broadcast"]


@pytest.mark.parametrize(
    ("name", "group", "queued_ms"),
    [("allreduce", "0", 0.0), ("allreduce", "1", 30.0), ("broadcast", "0", 30.0)],
)
def test_an_exchange_is_queued_behind_others_of_another_kind_or_group(
    name: str, group: str, queued_ms: float
) -> None:
    _, second = read(
        *sent(10, (20, 60), collective("allreduce", "0")), *sent(30, (60, 70), collective(name, group))
    )
    assert second.queued_s * 1e3 == pytest.approx(queued_ms)


def test_an_exchange_belongs_to_the_step_in_which_the_host_started_it() -> None:
    """The second one runs when the host is in the next step; the one before the first step is in none."""
    before = event("user_annotation", "warm up", (-50, -40))
    early = sent(-45, (5, 8), collective("barrier"))
    timeline = TraceTimeline(
        [before, *early, *marked([*sent(10, (20, 30), ALL_REDUCE), *sent(90, (120, 130), ALL_REDUCE)])]
    )
    found = exchanges(timeline.sent, timeline.annotations, timeline.compute, timeline.host_steps)
    assert [(exchange.kind, exchange.step) for exchange in found] == [
        ("all_reduce", 0), ("all_reduce", 0), ("all_reduce", 1), ("all_reduce", 1),
    ]  # fmt: skip


def test_an_exchange_on_the_stream_of_the_kernels_cannot_be_hidden() -> None:
    on_it = on_device("kernel", "ncclDevKernel_AllGather", 10, (30, 40), 1, thread=COMPUTE_STREAM)
    (exchange,) = read(*computed(9, (20, 30)), *on_it)
    assert not exchange.beside_compute


def test_exchanges_on_gloo_have_their_kind_and_size_and_no_group() -> None:
    shared = event("user_annotation", "gloo:all_reduce", (50, 90), **sized(1000))
    (exchange,) = read(event("cpu_op", "aten::mm", (10, 70)), shared)
    assert (exchange.kind, exchange.group, exchange.size_bytes) == ("all_reduce", "", 4000)
    assert (exchange.time_s, exchange.exposed_s) == pytest.approx((0.040, 0.020))


# groups


def test_groups_are_those_that_exchanges_name() -> None:
    pipeline = collective("send", "7", **{"Process Group Description": "pp", "Group size": 2})
    assert groups({}, ALL_REDUCE, pipeline, ALL_REDUCE, {}) == {
        "0": Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3)),
        "7": Group(name="7", description="pp", size=2, ranks=None),
    }


def test_what_a_kernel_does_not_say_of_its_group_the_job_s_facts_do() -> None:
    cut_off = collective("send", "7", **{"Process Group Ranks": "[0, 2, ...]"})
    configured = [
        None,
        {"pg_name": "7", "pg_desc": "pp", "ranks": [0, 2, 4]},
        {"pg_name": "unused", "ranks": [1]},
    ]
    assert groups({"pg_config": configured}, cut_off) == {
        "7": Group(name="7", description="pp", size=3, ranks=(0, 2, 4))
    }


@pytest.mark.parametrize("size", [10**400, 0, -4, 1.5, "4", [4]], ids=short)
def test_a_group_size_that_cannot_be_is_unknown(size: Any) -> None:
    assert groups({}, collective("allreduce", "0", **{"Group size": size}))["0"].size is None


# bus bandwidth

FACTORS = {  # of 4 ranks, as the authors of NCCL's own tests define them
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "all_to_all": 0.75,
    "broadcast": 1.0,
    "reduce": 1.0,
    "send_recv": 1.0,
    "gather": None,
    "barrier": None,
    "other": None,
}


@pytest.mark.parametrize("kind", FACTORS)
def test_bus_bandwidth_is_that_of_nccl_s_own_tests(kind: str) -> None:
    assert bus_factor(kind, 4) == FACTORS[kind]
    assert bus_factor(kind, 1) is None
