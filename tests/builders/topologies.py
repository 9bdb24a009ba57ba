"""Topologies of hosts as they were recorded, and ranks on them."""

from itertools import combinations
from typing import Any

from scalescope.analysis.comm.expected import LinkEnd, link_ends
from scalescope.results.result import RankRecord
from scalescope.results.topology import GpuSite, NicSite, Topology

BUSES = [f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]
H100, A100, V100_PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB"


def gpu_sites(count: int, name: str, **facts: Any) -> tuple[GpuSite, ...]:
    return tuple(
        GpuSite(
            index=index,
            uuid=f"GPU-{index:04d}",
            name=name,
            pci_bus=BUSES[index],
            numa_node=index // 4,
            **facts,
        )
        for index in range(count)
    )


def paths_between(count: int, path: str) -> dict[str, str]:
    return {f"{low}-{high}": path for low, high in combinations(range(count), 2)}


def dgx_h100(cards: int = 8) -> Topology:
    """Eight H100 SXM behind NVSwitch; a card of 400 Gbit/s next to each, and one that is down."""
    facts = {"nvlink_version": 4, "nvlink_count": 18, "pcie_generation": 5, "pcie_width": 16}
    nics = tuple(
        NicSite(name=f"mlx5_{number}", kind="infiniband", rate_bytes_per_s=50e9) for number in range(cards)
    )
    down = NicSite(name="mlx5_9", kind="infiniband", rate_bytes_per_s=None)
    ethernet = NicSite(name="eno1", kind="ethernet", rate_bytes_per_s=1.25e9)
    return Topology(
        gpus=gpu_sites(8, H100, **facts),
        nics=(*nics, down, ethernet),
        gpu_paths=paths_between(8, "NV18"),
        nic_paths={
            f"{gpu}-mlx5_{card}": "PIX" if gpu == card else "NODE" if gpu // 4 == card // 4 else "SYS"
            for gpu in range(8)
            for card in range(cards)
        },
    )


def over_pcie(
    count: int = 2, name: str = V100_PCIE, path: str = "PHB", generation: int | None = 3
) -> Topology:
    """GPUs without NVLink."""
    return Topology(
        gpus=gpu_sites(count, name, pcie_generation=generation, pcie_width=16),
        gpu_paths=paths_between(count, path),
    )


def two_sockets_of_pairs() -> Topology:
    """Four H100 NVL: bridges of 12 links in pairs, PCIe between them, two sockets."""
    facts = {"nvlink_version": 4, "nvlink_count": 12, "pcie_generation": 5, "pcie_width": 16}
    return Topology(
        gpus=gpu_sites(4, "NVIDIA H100 NVL", **facts),
        gpu_paths={**paths_between(4, "SYS"), "0-1": "NV12", "2-3": "NV12"},
    )


def environment_of(
    topologies: dict[str, Topology | None], visible: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """environment.json of hosts with these topologies; torch may see a part of the GPUs, in its own order."""
    nodes, systems = {}, {}
    for host, topology in topologies.items():
        sites = () if topology is None else topology.gpus
        order = range(len(sites)) if visible is None else visible
        nodes[host] = {
            "gpus": [
                {
                    "index": number,
                    "name": sites[gpu].name,
                    "uuid": (sites[gpu].uuid or "").removeprefix("GPU-"),
                }
                for number, gpu in enumerate(order)
            ]
        }
        systems[host] = {"topology": None if topology is None else topology.to_json()}
    several = {"systems": systems} if len(systems) > 1 else {}
    machine = {"host": next(iter(nodes))}
    return {"machine": machine, "nodes": nodes, "system": next(iter(systems.values())), **several}


def records(hosts: str, *, device: str = "cuda") -> list[RankRecord]:
    """A rank for every letter, which is its host; on each host they have the first GPUs."""
    return [
        RankRecord(
            rank=rank,
            host=host,
            device=f"cuda:{hosts[:rank].count(host)}" if device == "cuda" else "cpu",
            placement="",
        )
        for rank, host in enumerate(hosts)
    ]


def ends_on(
    topologies: dict[str, Topology | None],
    hosts: str,
    *,
    device: str = "cuda",
    visible: tuple[int, ...] | None = None,
) -> tuple[LinkEnd, ...]:
    return link_ends(environment_of(topologies, visible), records(hosts, device=device))
