"""Topologies as they are stored, sizes of buckets, and differences of nodes."""

import pytest

from scalescope.experiment.machine import NodeDifference
from scalescope.results.result import RankRecord
from scalescope.results.topology import GpuSite, NicSite, Topology, core_list, cores_of, topologies_of

ONE = Topology(numa_cores={0: (0, 1)}, numa_distances=((10,),))


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("5", (5,)),
        ("", ()),
        ("\n", ()),
        ("all", ()),
        (None, ()),
        ("0-9999999999", ()),
    ],
)
def test_the_kernel_s_lists_of_cores(text: str | None, cores: tuple[int, ...]) -> None:
    assert cores_of(text) == cores
    assert cores_of(core_list(cores)) == cores


def test_cores_are_listed_in_ranges() -> None:
    assert core_list([8, 3, 1, 2, 0, 10, 11]) == "0-3,8,10-11"
    assert core_list([]) == ""


def test_every_host_that_recorded_a_topology_has_one() -> None:
    stored = ONE.to_json()
    assert topologies_of({"machine": {"host": "n1"}, "system": {"topology": stored}}) == {"n1": ONE}
    several = {"systems": {"n1": {"topology": stored}, "n2": {"topology": None}, "n3": {}}}
    assert topologies_of(several) == {"n1": ONE}


def test_what_else_a_row_has_is_passed_over() -> None:
    stored = {**ONE.to_json(), "gpus": [{"index": 0, "more": 1}]}
    read = Topology.from_json(stored)
    assert read is not None and read.gpus == (GpuSite(index=0),)


@pytest.mark.parametrize("system", [{"topology": "\tGPU0\nGPU0\t X\n"}, {"topology": None}, {}, None])
def test_what_is_no_topology(system: object) -> None:
    assert topologies_of({"machine": {"host": "n1"}, "system": system}) == {}
    assert topologies_of({}) == {}


def test_a_gpu_is_found_with_and_without_the_prefix_of_its_id() -> None:
    topology = Topology(gpus=(GpuSite(index=3, uuid="1f2e"),))
    assert topology.gpu("GPU-1f2e") == topology.gpu("1f2e") == topology.gpus[0]
    assert topology.gpu("") is topology.gpu(None) is topology.gpu("other") is None


def test_distances_are_found_in_a_whole_table_only() -> None:
    nodes = {0: (0, 1), 2: (2, 3)}
    assert Topology(numa_cores=nodes, numa_distances=((10, 21), (21, 10))).numa_distance(0, 2) == 21
    assert Topology(numa_cores=nodes, numa_distances=((10,), (21, 10))).numa_distance(0, 2) is None
    assert Topology(numa_cores=nodes).numa_distance(0, 2) is None


def test_the_nearest_card_has_the_shortest_path() -> None:
    gpu = GpuSite(index=0)
    far, near = NicSite(name="mlx5_0"), NicSite(name="mlx5_1")
    paths = {"0-mlx5_0": "SYS", "0-mlx5_1": "PXB"}
    assert Topology(nics=(far, near), nic_paths=paths).nearest_nic(gpu) == (near, "PXB")
    assert Topology(nics=(far, near)).nearest_nic(gpu) is None


def record(**kept: object) -> RankRecord:
    return RankRecord(rank=0, host="h", device="d", placement="p", **kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kept", "sizes"),
    [
        ({"samples": {"bucket_bytes": [4000.0, 16.0]}}, (4000, 16)),
        ({"samples": {"bucket_bytes": []}}, None),
        ({}, None),
    ],
)
def test_bucket_sizes(kept: dict[str, object], sizes: tuple[int, ...] | None) -> None:
    assert record(**kept).bucket_bytes == sizes


DIFFERENCE = NodeDifference(name="GPUs", hosts_by_value={"8 x NVIDIA H100": ("n1", "n2"), "none": ("n3",)})


def test_a_difference_as_a_sentence() -> None:
    assert DIFFERENCE.text == "GPUs: 8 x NVIDIA H100 on n1, n2; none on n3"
