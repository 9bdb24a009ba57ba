"""Topology of a host: its GPUs, network cards and NUMA nodes, and the paths between them.

It is recorded in environment.json for every host (`systems.<host>.topology`, and `system.topology` of a run
on one host). What a host does not reveal is None or empty: unknown, never zero.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


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
    numa_cores: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # by node's number
    numa_distances: tuple[tuple[int, ...], ...] = ()  # as the kernel has them: 10 is local

    def path_between(self, low: int, high: int) -> str | None:
        """The kind of path between two GPUs, by their indices."""
        return self.gpu_paths.get(f"{min(low, high)}-{max(low, high)}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Self | None:
        """What was recorded; None where nothing was, or what was recorded is not a topology."""
        if not isinstance(raw, Mapping):
            return None
        try:
            return cls(
                gpus=tuple(GpuSite(**gpu) for gpu in raw.get("gpus", ())),
                nics=tuple(NicSite(**nic) for nic in raw.get("nics", ())),
                gpu_paths=dict(raw.get("gpu_paths", {})),
                nic_paths=dict(raw.get("nic_paths", {})),
                numa_cores={node: tuple(cores) for node, cores in dict(raw.get("numa_cores", {})).items()},
                numa_distances=tuple(tuple(row) for row in raw.get("numa_distances", ())),
            )
        except (AttributeError, TypeError, ValueError):
            return None
