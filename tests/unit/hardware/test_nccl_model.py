"""NCCL's model of collectives on one and two levels."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.hardware.nccl_model import _LAUNCH_S, ClusterShape, model_time
from scalescope.hardware.networks import networks

NVLINK, CARD = networks()["nvlink4"], networks()["400gbe"]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"]
GIB = 1 << 30


def shape(gpus: int, nodes: int = 1, cards: int = 1) -> ClusterShape:
    return ClusterShape(gpus, nodes, NVLINK, CARD, cards)


def test_a_large_all_reduce_of_one_node_is_a_ring() -> None:
    time = model_time("all_reduce", GIB, shape(8))
    base_s, hop_s = 8.4e-6, 3.4e-6
    assert time.algorithm == "ring"
    assert time.time_s == pytest.approx(
        _LAUNCH_S + base_s + 2 * 7 * hop_s + 2 * 7 / 8 * GIB / NVLINK.bytes_per_s
    )


def test_a_small_message_takes_latency_alone() -> None:
    time = model_time("all_reduce", 8, shape(8))
    assert time.time_s == pytest.approx(_LAUNCH_S + 6.6e-6 + 2 * 7 * 0.6e-6, rel=1e-3)


def test_small_messages_among_many_nodes_take_a_tree() -> None:
    time = model_time("all_reduce", 1024, shape(4096, 512))
    assert time.algorithm == "tree"
    hops_s = 2 * 7 * 0.6e-6 + 2 * math.log2(512) * 2.7e-6
    assert time.time_s == pytest.approx(_LAUNCH_S + 6.6e-6 + hops_s, rel=1e-2)


def test_a_hierarchy_adds_up_its_levels() -> None:
    cluster, size = shape(1024, 128, cards=8), 1 << 20
    time = model_time("all_gather", size, cluster)
    assert time.algorithm == "hierarchical"  # a ring has a thousand hops
    inside_s = 7 / 8 * size / NVLINK.bytes_per_s
    between_s = 127 / 128 * size / (8 * CARD.bytes_per_s)
    latency_s = _LAUNCH_S + 6.6e-6 + 7 * 0.6e-6 + 127 * 2.7e-6
    assert time.time_s == pytest.approx(2 * (inside_s + between_s) + latency_s)  # LL sends flags as well


def test_all_gather_takes_half_of_an_all_reduce_on_the_wire() -> None:
    both = [model_time(name, GIB, shape(8)) for name in ("all_reduce", "all_gather")]
    transfers = [time.time_s - time.latency_s for time in both]
    assert transfers[0] == pytest.approx(2 * transfers[1])


@given(
    st.sampled_from(COLLECTIVES),
    st.floats(1, 1e11),
    st.floats(1, 10),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_more_bytes_take_longer_and_more_cards_do_not(
    collective: str, size: float, factor: float, nodes: int, per_node: int, cards: int
) -> None:
    gpus = max(2, nodes * per_node)
    time_s = model_time(collective, size, shape(gpus, nodes, cards)).time_s
    assert model_time(collective, size * factor, shape(gpus, nodes, cards)).time_s >= time_s
    assert model_time(collective, size, shape(gpus, nodes, cards + 1)).time_s <= time_s
    slowest = NVLINK.bytes_per_s if nodes == 1 else max(NVLINK.bytes_per_s, cards * CARD.bytes_per_s)
    least = 0.5 if collective in ("all_gather", "reduce_scatter") else 1.0
    assert time_s >= least * size / slowest
