"""Links and networks by name, and NCCL's model of collectives on one and two levels."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.hardware.nccl_model import ClusterShape, model_time
from scalescope.hardware.published import (
    gpu_model,
    network_share,
    networks,
    nvlink_rate,
    pcie_lane_rate,
    published_all_reduce,
)

GB = 1e9


MODELS = {
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA A100-SXM4-80GB": "A100 SXM",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe",
    "Tesla V100-SXM2-16GB": "V100 SXM",
    "Tesla V100-PCIE-16GB": "V100 PCIe",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    "NVIDIA L4": None,
    None: None,
}


def test_models_are_told_by_their_exact_names() -> None:
    assert {name: gpu_model(name) for name in MODELS} == MODELS


@pytest.mark.parametrize(
    ("version", "per_link", "links"), [(2, 25 * GB, 6), (3, 25 * GB, 12), (4, 25 * GB, 18), (5, 50 * GB, 18)]
)
def test_nvlinks_have_their_published_rates(version: int, per_link: float, links: int) -> None:
    rate = nvlink_rate(version, None)
    assert rate is not None and rate.nominal == per_link
    assert 0.7 * rate.nominal < rate.reached < rate.nominal and rate.source
    assert networks()[f"nvlink{version}"].bytes_per_s == pytest.approx(links * rate.reached)


def test_lanes_double_from_generation_to_generation_and_a_gpu_has_sixteen() -> None:
    rates = [rate for generation in (3, 4, 5, 6) if (rate := pcie_lane_rate(generation)) is not None]
    nominal = [rate.nominal for rate in rates]
    assert nominal[0] == pytest.approx(0.985e9)
    assert [after / before for before, after in pairwise(nominal)] == pytest.approx([2, 2, 2], rel=0.05)
    assert pcie_lane_rate(9) is None and nvlink_rate(1, None) is None
    for generation, rate in zip((3, 4, 5), rates, strict=False):
        assert networks()[f"pcie{generation}"].bytes_per_s == pytest.approx(16 * rate.reached)


def test_network_cards() -> None:
    share, _ = network_share()
    cards = {"10gbe": 10, "25gbe": 25, "100gbe": 100, "400gbe": 400, "hdr": 200, "ndr": 400}
    for name, gigabits in cards.items():
        assert networks()[name].bytes_per_s == pytest.approx(gigabits / 8 * GB * share)


def test_every_network_has_a_source_and_published_systems_exist() -> None:
    systems = {curve.system for curve in published_all_reduce()}
    for network in networks().values():
        assert network.source
        assert not network.published or network.published in systems
        assert list(network.hop_s) == sorted(network.hop_s)


# NCCL's model


NVLINK, CARD = networks()["nvlink4"], networks()["400gbe"]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"]
GIB = 1 << 30
LAUNCH_S = 24e-6


def shape(gpus: int, nodes: int = 1, cards: int = 1) -> ClusterShape:
    return ClusterShape(gpus, nodes, NVLINK, CARD, cards)


def test_a_ring_takes_latency_and_what_its_bytes_take() -> None:
    time = model_time("all_reduce", GIB, shape(8))
    base_s, hop_s = 8.4e-6, 3.4e-6
    assert time.algorithm == "ring"
    assert time.time_s == pytest.approx(
        LAUNCH_S + base_s + 2 * 7 * hop_s + 2 * 7 / 8 * GIB / NVLINK.bytes_per_s
    )
    time = model_time("all_reduce", 8, shape(8))
    assert time.time_s == pytest.approx(LAUNCH_S + 6.6e-6 + 2 * 7 * 0.6e-6, rel=1e-3)


def test_small_messages_among_many_nodes_take_a_tree() -> None:
    time = model_time("all_reduce", 1024, shape(4096, 512))
    assert time.algorithm == "tree"
    hops_s = 2 * 7 * 0.6e-6 + 2 * math.log2(512) * 2.7e-6
    assert time.time_s == pytest.approx(LAUNCH_S + 6.6e-6 + hops_s, rel=1e-2)


def test_a_hierarchy_adds_up_its_levels() -> None:
    cluster, size = shape(1024, 128, cards=8), 1 << 20
    time = model_time("all_gather", size, cluster)
    assert time.algorithm == "hierarchical"  # a ring has a thousand hops
    inside_s = 7 / 8 * size / NVLINK.bytes_per_s
    between_s = 127 / 128 * size / (8 * CARD.bytes_per_s)
    latency_s = LAUNCH_S + 6.6e-6 + 7 * 0.6e-6 + 127 * 2.7e-6
    assert time.time_s == pytest.approx(2 * (inside_s + between_s) + latency_s)  # LL sends flags as well


def test_all_gather_takes_half_of_an_all_reduce_on_the_wire() -> None:
    both = [model_time(name, GIB, shape(8)) for name in ("all_reduce", "all_gather")]
    transfers = [time.time_s - time.latency_s for time in both]
    assert transfers[0] == pytest.approx(2 * transfers[1])


@settings(max_examples=40)
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
