"""The nodes of a launch: topology from a made-up /sys, and nodes made of what their ranks saw."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.probing import nodes_from_probes
from scalescope.launch.topology import host_topology
from scalescope.results.topology import GpuSite, NicSite, Topology
from tests.simulated.launcher import TWO_CORES
from tests.unit.test_host_memory import MATRIX

GPUS = (
    GpuSite(index=0, uuid="a", pci_bus="0000:1b:00.0", nvlink_version=4, nvlink_count=18),
    GpuSite(index=1, uuid="b", pci_bus="0000:9b:00.0"),
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


class FakeHost:
    """A /sys of two sockets; cards are links to their PCI devices, as in the real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for node, cores in enumerate(("0-1,4-5", "2-3,6-7")):
            folder = root / f"sys/devices/system/node/node{node}"
            write(folder / "cpulist", cores)
            write(folder / "distance", "10 21" if node == 0 else "21 10")

    def pci(self, bus: str, numa_node: int) -> Path:
        device = self.root / f"sys/devices/pci0000:00/{bus}"
        write(device / "numa_node", str(numa_node))
        link = self.root / f"sys/bus/pci/devices/{bus}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
        return device

    def port(self, name: str, bus: str, *, state: str = "4: ACTIVE", layer: str = "InfiniBand") -> None:
        port = self.root / f"sys/class/infiniband/{name}/ports/1"
        write(port / "state", state)
        write(port / "rate", "400 Gb/sec (4X NDR)")
        write(port / "link_layer", layer)
        (port.parent.parent / "device").symlink_to(self.root / f"sys/bus/pci/devices/{bus}")

    def interface(self, name: str, bus: str | None, *, speed: str = "25000", state: str = "up") -> None:
        folder = self.root / f"sys/class/net/{name}"
        write(folder / "operstate", state)
        write(folder / "speed", speed)
        if bus is not None:
            (folder / "device").symlink_to(self.root / f"sys/bus/pci/devices/{bus}")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    for bus, node in (("0000:1b:00.0", 0), ("0000:9b:00.0", 1), ("0000:1a:00.0", 0), ("0000:02:00.0", 0)):
        host.pci(bus, node)
    return host


def test_numa_nodes_with_their_cores_and_distances(host: FakeHost) -> None:
    topology = host_topology(None, host.root, ())
    assert topology.numa_cores == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert topology.numa_distances == ((10, 21), (21, 10))
    assert topology.numa_distance(0, 1) == 21
    assert topology.numa_nodes_of([3, 7]) == (1,)


def test_gpus_have_the_numa_node_of_their_slot_and_their_paths(host: FakeHost) -> None:
    host.port("mlx5_0", "0000:1a:00.0")
    topology = host_topology(MATRIX, host.root, GPUS)
    assert [(gpu.numa_node, gpu.nvlink_count) for gpu in topology.gpus] == [(0, 18), (1, None)]
    assert topology.gpu_paths == {"0-1": "NV18"}
    assert topology.nic_paths["1-mlx5_bond_0"] == "PXB"
    assert Topology.from_json(topology.to_json()) == topology


def test_a_slot_without_a_numa_node_leaves_it_to_nvidia_smi(tmp_path: Path) -> None:
    topology = host_topology(MATRIX, tmp_path, GPUS)
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1]
    assert [gpu.numa_node for gpu in host_topology(None, tmp_path, GPUS).gpus] == [None, None]


def test_active_ports_have_their_rate_kind_and_slot(host: FakeHost) -> None:
    host.port("mlx5_0", "0000:1a:00.0")
    host.port("mlx5_1", "0000:02:00.0", state="1: DOWN")
    assert host_topology(None, host.root, ()).nics == (
        NicSite(name="mlx5_0", kind="infiniband", rate_bytes_per_s=50e9, pci_bus="0000:1a:00.0", numa_node=0),
    )


def test_a_card_that_is_both_is_counted_once(host: FakeHost) -> None:
    host.port("mlx5_0", "0000:1a:00.0", layer="Ethernet")
    host.interface("ens1", "0000:1a:00.0", speed="400000")
    host.interface("eno1", "0000:02:00.0")
    nics = host_topology(None, host.root, ()).nics
    assert [(nic.name, nic.kind) for nic in nics] == [("mlx5_0", "ethernet"), ("eno1", "ethernet")]
    assert nics[1].rate_bytes_per_s == 25e9 / 8


def test_interfaces_that_are_no_cards_or_down_are_left_out_and_a_virtual_rate_is_unknown(
    host: FakeHost,
) -> None:
    host.interface("lo", None)
    host.interface("eth1", "0000:02:00.0", state="down")
    host.interface("eth0", "0000:1a:00.0", speed="-1")
    (nic,) = host_topology(None, host.root, ()).nics
    assert (nic.name, nic.rate_bytes_per_s) == ("eth0", None)


def test_a_host_that_shows_nothing_has_an_empty_topology(tmp_path: Path) -> None:
    assert host_topology(None, tmp_path, ()) == Topology()


def test_distances_that_do_not_fit_are_unknown(host: FakeHost) -> None:
    write(host.root / "sys/devices/system/node/node1/distance", "21")
    topology = host_topology(None, host.root, ())
    assert (topology.numa_distances, topology.numa_distance(0, 1)) == ((), None)


def _probe(host: str, node: str, **changes: Any) -> dict[str, Any]:
    raw = dataclasses.asdict(TWO_CORES)
    return {
        "host": host,
        "node": node,
        "cores": [0, 1],
        "cpus_per_task": 0,
        "gpu": None,
        "machine": raw,
        "system": {},
    } | changes


def _gpu(uuid: str) -> dict[str, Any]:
    return {"index": 0, "name": "H200", "memory_bytes": 1, "uuid": uuid}


def test_one_machine_for_each_node_in_the_order_of_ranks() -> None:
    nodes = nodes_from_probes([_probe("b", "0"), _probe("b", "0", machine=None), _probe("a", "1")])
    assert list(nodes) == ["b", "a"]
    assert nodes["b"].machine.cores == 2
    assert [node.ranks for node in nodes.values()] == [(0, 1), (2,)]


def test_cores_dealt_out_to_tasks_are_added_and_no_more_than_slurm_gave() -> None:
    bound = [_probe("a", "0", cores=[0, 1]), _probe("a", "0", cores=[2, 3], machine=None)]
    assert nodes_from_probes(bound)["a"].machine.cores == 4
    free = [_probe("a", "0", cores=list(range(64)), cpus_per_task=4) for _ in range(2)]
    assert nodes_from_probes(free)["a"].machine.cores == 8


def test_gpus_that_only_their_rank_sees_are_added() -> None:
    first = _probe("a", "0")
    first["machine"]["gpus"] = [_gpu("x")]
    nodes = nodes_from_probes([first, _probe("a", "0", machine=None, gpu=_gpu("y"))])
    assert [gpu.uuid for gpu in nodes["a"].machine.gpus] == ["x", "y"]


def test_nodes_with_the_same_name_are_distinguished() -> None:
    assert list(nodes_from_probes([_probe("a", "0"), _probe("a", "1")])) == ["a", "a (node 1)"]


def test_a_node_without_a_probe_is_refused() -> None:
    with pytest.raises(CannotRun, match="that node was not probed"):
        nodes_from_probes([_probe("a", "0", machine=None)])
