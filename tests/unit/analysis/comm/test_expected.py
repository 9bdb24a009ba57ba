"""Which GPU a rank has, what links should deliver, and a measured number as a share of that."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.expected import (
    Expected,
    LinkEnd,
    UnknownRate,
    expectation_of,
    expected_busbw,
    link_ends,
    path_class,
)
from scalescope.experiment.trial import Trial
from scalescope.hardware.published import curve_for, published_all_reduce
from scalescope.results.topology import NicSite, Topology
from tests.builders.results import make_row as made_row
from tests.builders.topologies import (
    A100,
    dgx_h100,
    ends_on,
    environment_of,
    gpu_sites,
    over_pcie,
    paths_between,
    records,
    two_sockets_of_pairs,
)


def indices(sites: tuple[LinkEnd, ...]) -> list[int | None]:
    return [None if site.gpu is None else site.gpu.index for site in sites]


def test_a_rank_s_gpu_is_found_by_its_identity_or_its_bus() -> None:
    assert indices(ends_on({"a": dgx_h100()}, "aaa")) == [0, 1, 2]
    assert indices(ends_on({"a": dgx_h100()}, "aa", visible=(5, 4))) == [5, 4]
    environment = environment_of({"a": dgx_h100()})
    for number, gpu in enumerate(environment["nodes"]["a"]["gpus"]):
        gpu.update(uuid="", pci_bus=environment["system"]["topology"]["gpus"][number]["pci_bus"])
    assert indices(link_ends(environment, records("aa"))) == [0, 1]


def test_what_a_rank_recorded_of_its_gpu_comes_first() -> None:
    environment = environment_of({"a": dgx_h100()})
    recorded = [
        dataclasses.replace(record, device="cuda:0", counters={"gpu_uuid": f"000{gpu}"})
        for record, gpu in zip(records("aa"), (6, 3), strict=True)
    ]
    ends = link_ends(environment, recorded)
    assert indices(ends) == [6, 3]
    assert ends[0].gpu_name == "NVIDIA H100 80GB HBM3"


def test_ranks_that_see_only_their_own_gpu_have_them_in_order() -> None:
    environment = environment_of({"a": two_sockets_of_pairs()})
    shown = [dataclasses.replace(record, device="cuda:0") for record in records("aaaa")]
    assert indices(link_ends(environment, shown)) == [0, 1, 2, 3]


def test_runs_without_a_recorded_topology_have_ends_of_which_nothing_is_known() -> None:
    for environment in ({}, {"nodes": {"a": {"gpus": []}}, "system": {"topology": "GPU0 GPU1 X NV18"}}):
        (site,) = link_ends(environment, records("a"))
        assert (site.host, site.gpu, site.topology) == ("a", None, None)


def test_paths_inside_a_host_have_classes() -> None:
    groups = {"NV18": "NV18", "PIX": "PIX", "PXB": "PIX", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}
    for path, group in groups.items():
        low, high = ends_on({"a": over_pcie(path=path)}, "aa")
        assert path_class(low, high) == group
    low, high = ends_on({"a": Topology(gpus=gpu_sites(2, "GPU"), gpu_paths=paths_between(1, "PIX"))}, "aa")
    assert path_class(low, high) is None
    low, high = ends_on({"a": None}, "aa")
    assert path_class(low, high) is None


def test_between_hosts_the_cards_next_to_both_gpus_make_the_rail() -> None:
    sites = ends_on({"a": dgx_h100(), "b": dgx_h100()}, "aaabbb")
    assert path_class(sites[1], sites[4]) == "rail"
    assert path_class(sites[1], sites[5]) == "across rails"
    without = ends_on({"a": dgx_h100(), "b": None}, "ab")
    assert path_class(*without) is None


# by links


def trial(ranks: int, device: str = "cuda", **settings: Any) -> Trial:
    return Trial(settings={"world_size": ranks, "device": device, **settings})


def expected(sites: tuple[LinkEnd, ...], **settings: Any) -> Expected:
    outcome = expected_busbw(trial(len(sites), **settings), sites)
    assert isinstance(outcome, Expected), outcome
    return outcome


def missing(sites: tuple[LinkEnd, ...], **settings: Any) -> str:
    outcome = expected_busbw(trial(len(sites), **settings), sites)
    assert isinstance(outcome, UnknownRate), outcome
    return outcome.missing


def test_nvlinks_to_other_ranks_count_and_behind_a_switch_all_of_them() -> None:
    four = expected(ends_on({"a": dgx_h100()}, "aaaa"))
    assert four.bytes_per_s == pytest.approx(18 * 20.6e9)
    assert four.path == "18 NVLink 4 links per GPU"
    assert "whitepaper" in four.source and "topo.h" in four.source
    two = expected(ends_on({"a": dgx_h100()}, "aa"))
    assert two.bytes_per_s == four.bytes_per_s
    mesh = Topology(
        gpus=gpu_sites(4, A100, nvlink_version=3, nvlink_count=12), gpu_paths=paths_between(4, "NV4")
    )
    assert expected(ends_on({"a": mesh}, "aaaa")).bytes_per_s == pytest.approx(12 * 20e9)
    assert expected(ends_on({"a": mesh}, "aa")).bytes_per_s == pytest.approx(4 * 20e9)
    bridged = Topology(
        gpus=gpu_sites(2, "NVIDIA RTX A6000", nvlink_version=3, nvlink_count=4),
        gpu_paths=paths_between(2, "NV4"),
    )
    assert expected(ends_on({"a": bridged}, "aa")).bytes_per_s == pytest.approx(4 * 12e9)


def test_gpus_without_nvlink_have_the_pcie_of_the_slowest() -> None:
    outcome = expected(ends_on({"a": over_pcie()}, "aa"))
    assert (outcome.bytes_per_s, outcome.path) == (pytest.approx(12e9), "PCIe 3 ×16")
    assert expected(ends_on({"a": over_pcie(generation=5)}, "aa")).bytes_per_s == pytest.approx(48e9)
    good, bad = over_pcie(2, generation=4).gpus
    mixed = dataclasses.replace(
        over_pcie(2, generation=4), gpus=(good, dataclasses.replace(bad, pcie_width=4))
    )
    assert expected(ends_on({"a": mixed}, "aa")).path == "PCIe 4 ×4"


@pytest.mark.parametrize(
    ("topology", "hosts", "what"),
    [
        (None, "aa", "the paths between the GPUs of a"),
        (over_pcie(path="SYS"), "aa", "the bandwidth between the sockets of a"),
        (over_pcie(generation=None), "aa", "the PCIe generation and width of GPU 0"),
        (two_sockets_of_pairs(), "aaaa", "the bandwidth between the sockets of a"),
    ],
)
def test_what_is_not_known_is_named(topology: Topology | None, hosts: str, what: str) -> None:
    assert missing(ends_on({"a": topology}, hosts)) == what


def test_a_mesh_in_which_some_pairs_have_no_link_is_unknown() -> None:
    """Eight V100 as in a DGX-1: NCCL builds rings of NVLinks, or not."""
    cube = {
        **paths_between(8, "SYS"),
        **dict.fromkeys(("0-1", "0-2", "1-3", "4-5", "4-6", "5-7", "2-6", "3-7"), "NV1"),
        **dict.fromkeys(("0-3", "0-4", "1-2", "1-5", "2-3", "4-7", "5-6", "6-7"), "NV2"),
    }
    volta = Topology(
        gpus=gpu_sites(8, "Tesla V100-SXM2-16GB", nvlink_version=2, nvlink_count=6), gpu_paths=cube
    )
    assert "rings" in missing(ends_on({"a": volta}, "aaaaaaaa"))
    assert expected(ends_on({"a": volta}, "aaaa", visible=(0, 1, 2, 3))).path.startswith("4 NVLink 2")


def test_gpus_are_found_though_torch_counts_them_in_another_order() -> None:
    assert expected(ends_on({"a": two_sockets_of_pairs()}, "aa")).path == "12 NVLink 4 links per GPU"
    pairs = two_sockets_of_pairs()
    assert expected(ends_on({"a": pairs}, "aa", visible=(2, 3))).path == "12 NVLink 4 links per GPU"
    assert "sockets" in missing(ends_on({"a": pairs}, "aa", visible=(1, 2)))


def test_between_nodes_cards_that_are_up_carry_together_what_pcie_allows() -> None:
    """A card that is down and the one for administration do not count."""
    eight = expected(ends_on({"a": dgx_h100(), "b": dgx_h100()}, "aaaabbbb"))
    assert eight.bytes_per_s == pytest.approx(4 * 48e9)  # PCIe of four GPUs, below eight cards
    assert eight.path == "PCIe 5 ×16 of 4 GPUs"
    fewer = expected(ends_on({"a": dgx_h100(2), "b": dgx_h100(2)}, "aaaabbbb"))
    assert fewer.bytes_per_s == pytest.approx(0.96 * 100e9)
    assert fewer.path == "a network of 800 Gbit/s per host (2 cards)"


def test_the_slowest_host_decides_and_an_unknown_one_leaves_all_unknown() -> None:
    slow = expected(ends_on({"a": dgx_h100(2), "b": dgx_h100(1)}, "aabb"))
    assert slow.path == "a network of 400 Gbit/s per host (1 card)"
    assert missing(ends_on({"a": dgx_h100(), "b": None}, "aabb")) == "the paths between the GPUs of b"
    unlinked = dataclasses.replace(dgx_h100(), nics=())
    assert "network cards of b" in missing(ends_on({"a": dgx_h100(), "b": unlinked}, "aabb"))


def test_a_published_curve_of_the_same_system_comes_first_and_knows_sizes() -> None:
    sites = ends_on({"a": dgx_h100(), "b": dgx_h100()}, "a" * 8 + "b" * 8)
    published = curve_for("NVIDIA H100 80GB HBM3", 16, 2)
    assert published is not None
    size, _, busbw = published.points[20]
    outcome = expected_busbw(trial(16), sites, [size])
    assert isinstance(outcome, Expected)
    assert outcome.bytes_per_s == pytest.approx(busbw, rel=0.01)
    assert (outcome.path, outcome.source) == ("16×H100 SXM on 2 nodes", published.source)
    assert outcome.is_far_above(busbw / 3.1) and not outcome.is_far_above(busbw / 2.9)


def test_an_emulated_link_is_known_exactly_and_gloo_inside_a_host_not_at_all() -> None:
    outcome = expected(ends_on({"a": None}, "aa", device="cpu"), device="cpu", link="0:1gbit,1:100mbit")
    assert (outcome.bytes_per_s, outcome.source) == (12.5e6, "the emulated link")
    outcome = expected_busbw(trial(2, "cpu"), ends_on({"a": None}, "aa", device="cpu"))
    assert isinstance(outcome, UnknownRate) and outcome.is_loopback


def ethernet(*rates: float | None) -> Topology:
    return Topology(
        nics=tuple(
            NicSite(name=f"eth{number}", kind="ethernet", rate_bytes_per_s=rate)
            for number, rate in enumerate(rates)
        )
    )


def test_gloo_fills_one_slow_card_and_nothing_is_known_of_faster_ones() -> None:
    def between(topology: Topology) -> tuple[LinkEnd, ...]:
        return ends_on({"a": topology, "b": topology}, "ab", device="cpu")

    assert expected(between(ethernet(1.25e9, None)), device="cpu").bytes_per_s == pytest.approx(1.2e9)
    assert "10 Gbit/s" in missing(between(ethernet(12.5e9)), device="cpu")
    assert "gloo uses" in missing(between(ethernet(1.25e9, 1.25e9)), device="cpu")


def test_ranks_on_one_gpu_have_no_published_rate() -> None:
    for shared in ({"split_gpu": 2}, {"oversubscribe": True}):
        assert missing(ends_on({"a": dgx_h100()}, "aa"), **shared) == "the bandwidth between ranks on one GPU"


# a measured number as a share


def make_row(size: int, time_s: float, ranks: int = 8, collective: str = "all_reduce") -> CollectiveRow:
    return made_row(size, time_s, collective=collective, ranks=ranks, in_place=False)


def test_the_slowest_emulated_link_is_what_is_expected_whatever_the_gpu() -> None:
    expectation = expectation_of(make_row(100_000_000, 1.0, ranks=2), None, "1gbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(100e6 / 125e6)
    assert expectation.of_what == "the link of 1gbit"
    assert expectation.source == "the emulated link"
    expectation = expectation_of(make_row(10_000_000, 1.0, ranks=2), None, "0:1gbit,1:100mbit")
    assert expectation is not None
    assert expectation.share == pytest.approx(10e6 / 12.5e6)
    expectation = expectation_of(make_row(1 << 20, 1.0), "NVIDIA H200", "1gbit")
    assert expectation is not None and expectation.source == "the emulated link"
    assert expectation_of(make_row(0, 1.0, ranks=2, collective="barrier"), None, "1gbit") is None


def test_a_gpu_is_held_against_the_published_curve_at_that_size() -> None:
    published = curve_for("NVIDIA H200", 8)
    assert published is not None
    size, time_s, _ = published.points[5]
    expectation = expectation_of(make_row(size, 2 * time_s), "NVIDIA H200", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "8×H200 SXM"
    assert expectation.source == published.source
    spread = dataclasses.replace(make_row(1 << 30, 1.0, ranks=16), hosts=("a",) * 8 + ("b",) * 8)
    expectation = expectation_of(spread, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None and expectation.of_what == "16×H100 SXM on 2 nodes"


@pytest.mark.parametrize(
    ("row", "gpu"),
    [
        (make_row(1 << 30, 1.0), None),
        (make_row(1 << 30, 1.0), "NVIDIA L4"),
        (make_row(1 << 30, 1.0, ranks=4), "NVIDIA H200"),
        (make_row(1 << 30, 1.0, ranks=16), "NVIDIA H100 80GB HBM3"),  # published over two nodes only
        (make_row(1 << 30, 1.0, collective="broadcast"), "NVIDIA H200"),
        (make_row(8, 1.0), "NVIDIA H200"),  # smaller than what was published
        (make_row(1 << 40, 1.0), "NVIDIA H200"),
    ],
)
def test_without_a_published_curve_nothing_is_expected(row: CollectiveRow, gpu: str | None) -> None:
    assert expectation_of(row, gpu, None) is None


def test_published_curves_have_sources_and_agree_with_their_own_bandwidth() -> None:
    curves = published_all_reduce()
    assert {(curve.gpu, curve.gpus, curve.nodes) for curve in curves} >= {
        ("H200 SXM", 8, 1),
        ("H100 SXM", 16, 2),
    }
    for curve in curves:
        assert curve.source
        assert [point[0] for point in curve.points] == sorted({point[0] for point in curve.points})
        size, time_s, bus = curve.points[-1]
        assert size / time_s * 2 * (curve.gpus - 1) / curve.gpus == pytest.approx(bus, rel=0.01)


def test_a_large_message_is_held_against_links_and_a_small_one_is_not() -> None:
    links = Expected(bytes_per_s=100e9, path="some links", source="somewhere")
    row = make_row(1 << 26, (1 << 26) * 1.75 / 50e9)
    expectation = expectation_of(row, "NVIDIA L4", None, links)
    assert expectation is not None and expectation.share == pytest.approx(0.5)
    assert (expectation.of_what, expectation.source) == ("what some links should carry", "somewhere")
    assert expectation_of(make_row(1 << 20, 1.0), "NVIDIA L4", None, links) is None
    assert expectation_of(row, "NVIDIA L4", None, UnknownRate(missing="something")) is None


def test_large_messages_are_held_against_what_is_usual_where_no_curve_is_published() -> None:
    row = make_row(1 << 30, (1 << 30) * 7 / 8 / 190e9, collective="all_gather")
    expectation = expectation_of(row, "NVIDIA H100 80GB HBM3", None)
    assert expectation is not None
    assert expectation.share == pytest.approx(0.5)
    assert expectation.of_what == "what is usual on 8×NVIDIA H100 80GB HBM3"
    assert expectation_of(row, "NVIDIA L4", None) is None
