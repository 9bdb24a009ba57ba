"""Topology of a host: its GPUs, network cards and NUMA nodes, and the paths between them.

It is recorded in environment.json for every host (`systems.<host>.topology`, and `system.topology` of a run
on one host). What a host does not reveal is None or empty: unknown, never zero.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

_MOST_CORES = 1 << 16  # of a host
LOCAL_DISTANCE = 10  # the kernel's distance of a NUMA node to itself
_NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSite:
    """Where a GPU sits and what connects it."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus: str | None = None  # 0000:1b:00.0
    numa_node: int | None = None
    nvlink_version: int | None = None  # 4 on Hopper
    nvlink_count: int | None = None  # active links
    pcie_generation: int | None = None  # the largest that the slot and the GPU both support
    pcie_width: int | None = None  # lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSite:
    """A network card: what it carries, and where it sits."""

    name: str
    kind: str | None = None  # infiniband or ethernet
    rate_bytes_per_s: float | None = None
    pci_bus: str | None = None
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All of them. Paths have the names of `nvidia-smi topo -m`: NV18, PIX, PXB, PHB, NODE, SYS."""

    gpus: tuple[GpuSite, ...] = ()
    nics: tuple[NicSite, ...] = ()
    gpu_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)  # "0-1": "NV18"; smaller first
    nic_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)  # "0-mlx5_0": "PIX"
    numa_cores: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # by node's number
    numa_distances: tuple[tuple[int, ...], ...] = ()  # as the kernel has them: 10 is local

    def path_between(self, low: int, high: int) -> str | None:
        """The kind of path between two GPUs, by their indices."""
        return self.gpu_paths.get(f"{min(low, high)}-{max(low, high)}")

    def gpu(self, uuid: str | None) -> GpuSite | None:
        """The GPU with this id; ids of torch lack the prefix that the driver's have."""
        wanted = plain_uuid(uuid)
        return next((gpu for gpu in self.gpus if wanted and plain_uuid(gpu.uuid) == wanted), None)

    def nearest_nic(self, gpu: GpuSite) -> tuple[NicSite, str] | None:
        """The network card that a GPU reaches over the shortest path, and that path; None if unknown."""
        paths = [(nic, self.nic_paths.get(f"{gpu.index}-{nic.name}")) for nic in self.nics]
        known = [(nic, path) for nic, path in paths if path in _NEAREST_FIRST]
        return min(known, key=lambda pair: _NEAREST_FIRST.index(pair[1]), default=None)

    def numa_nodes_of(self, cores: Iterable[int]) -> tuple[int, ...]:
        """The NUMA nodes that these cores belong to."""
        wanted = set(cores)
        return tuple(sorted(node for node, members in self.numa_cores.items() if wanted & set(members)))

    def numa_distance(self, node: int, other: int) -> int | None:
        """The kernel's distance between two NUMA nodes; None where it does not tell."""
        order = sorted(self.numa_cores)
        if any(len(row) != len(order) for row in self.numa_distances):  # found by their position
            return None
        try:
            return self.numa_distances[order.index(node)][order.index(other)]
        except (IndexError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Self | None:
        """What was recorded; None where nothing was, or what was recorded is not a topology."""
        if not isinstance(raw, Mapping):
            return None
        try:
            return cls(
                gpus=tuple(GpuSite(**_known(GpuSite, gpu)) for gpu in raw.get("gpus", ())),
                nics=tuple(NicSite(**_known(NicSite, nic)) for nic in raw.get("nics", ())),
                gpu_paths=dict(raw.get("gpu_paths", {})),
                nic_paths=dict(raw.get("nic_paths", {})),
                numa_cores={
                    int(node): tuple(cores) for node, cores in dict(raw.get("numa_cores", {})).items()
                },
                numa_distances=tuple(tuple(row) for row in raw.get("numa_distances", ())),
            )
        except (AttributeError, TypeError, ValueError):
            return None


def _known(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row has of the fields of its kind; it may have others."""
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}


def topologies_of(environment: Mapping[str, Any]) -> dict[str, Topology]:
    """The topology of every host of an environment.json that recorded one."""
    systems = environment.get("systems")
    if not isinstance(systems, Mapping):
        host = str((environment.get("machine") or {}).get("host", "unknown"))
        systems = {host: environment.get("system")}
    read = {
        str(host): Topology.from_json(system.get("topology")) if isinstance(system, Mapping) else None
        for host, system in systems.items()
    }
    return {host: topology for host, topology in read.items() if topology is not None}


def plain_uuid(uuid: str | None) -> str:
    """A GPU's id without the driver's prefix."""
    return (uuid or "").removeprefix("GPU-").lower()


def cores_of(text: str | None) -> tuple[int, ...]:
    """The kernel's list of cores, `0-3,8`, as numbers; empty where it is not one."""
    cores: list[int] = []
    try:
        for part in filter(None, (text or "").strip().split(",")):
            first, _, last = part.partition("-")
            if int(last or first) - int(first) > _MOST_CORES or len(cores) > _MOST_CORES:
                return ()
            cores += range(int(first), int(last or first) + 1)
    except ValueError:
        return ()
    return tuple(cores)


def core_list(cores: Iterable[int]) -> str:
    """Cores as the kernel lists them: `0-3,8`."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
