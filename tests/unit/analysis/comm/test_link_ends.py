"""Which GPU a rank has, and the class of path between two of them."""

import dataclasses

from scalescope.analysis.comm.link_ends import LinkEnd, link_ends, path_class
from scalescope.results.topology import Topology
from tests.builders.topologies import (
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
