"""Topology of this host, from /sys, NVML and the matrix of nvidia-smi; torch is not needed."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalescope.launch.telemetry.nvml import gpu_sites
from scalescope.link_matrix import affinities_of, links_of, nic_links_of
from scalescope.results.topology import GpuSite, NicSite, Topology, cores_of

ROOT = Path("/")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE = re.compile(r"([0-9.]+) Gb/sec.*")
_BYTES_PER_S_OF_MBIT = 1e6 / 8


def host_topology(matrix: str | None, root: Path = ROOT, sites: Sequence[GpuSite] | None = None) -> Topology:
    """Everything that connects this host's GPUs; `matrix` is the output of `nvidia-smi topo -m`."""
    text = matrix or ""
    gpus = tuple(_with_numa(gpu, root, text) for gpu in (gpu_sites() if sites is None else sites))
    infiniband = tuple(_infiniband_ports(root))
    rdma_cards = {nic.pci_bus for nic in infiniband if nic.pci_bus is not None}
    ethernet = tuple(nic for nic in _interfaces(root) if nic.pci_bus not in rdma_cards)
    nodes = sorted(_numa_folders(root), key=_number)
    return Topology(
        gpus=gpus,
        nics=(*infiniband, *ethernet),
        gpu_paths={f"{low}-{high}": path for (low, high), path in links_of(text).items() if low < high},
        nic_paths={f"{gpu}-{name}": path for (gpu, name), path in nic_links_of(text).items()},
        numa_cores={_number(node): cores_of(_read(node / "cpulist")) for node in nodes},
        numa_distances=_distances(nodes),
    )


def _with_numa(gpu: GpuSite, root: Path, matrix: str) -> GpuSite:
    """The GPU with its NUMA node, by its PCI address or else by nvidia-smi."""
    node = _numa_node(root, gpu.pci_bus)
    if node is None:
        _, shown = affinities_of(matrix).get(gpu.index, ("", ""))
        node = int(shown) if shown.isdigit() else None
    return dataclasses.replace(gpu, numa_node=node)


def _infiniband_ports(root: Path) -> Iterator[NicSite]:
    """Ports of RDMA devices that are up: InfiniBand, or Ethernet with RoCE."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" not in (_read(port / "state") or ""):
            continue
        device = port.parent.parent
        rate = _RATE.fullmatch(_read(port / "rate") or "")
        yield NicSite(
            name=device.name if port.name == "1" else f"{device.name}:{port.name}",
            kind=(_read(port / "link_layer") or "").lower() or None,
            rate_bytes_per_s=float(rate[1]) * 1e9 / 8 if rate else None,
            pci_bus=(bus := _pci_bus(device / "device")),
            numa_node=_numa_node(root, bus),
        )


def _interfaces(root: Path) -> Iterator[NicSite]:
    """Network interfaces of cards that are up; bridges, tunnels and the loopback have no device."""
    for path in sorted((root / "sys/class/net").glob("*")):
        if not (path / "device").exists() or _read(path / "operstate") == "down":
            continue
        speed = _read(path / "speed") or ""
        known = speed.isdigit() and int(speed) > 0  # a virtual card says -1
        yield NicSite(
            name=path.name,
            kind="ethernet",
            rate_bytes_per_s=int(speed) * _BYTES_PER_S_OF_MBIT if known else None,
            pci_bus=(bus := _pci_bus(path / "device")),
            numa_node=_numa_node(root, bus),
        )


def _pci_bus(device: Path) -> str | None:
    """The PCI address of a device: the last one in its path, since a virtual device lies below its card."""
    parts = [part for part in device.resolve().parts if _PCI.fullmatch(part)]
    return parts[-1] if parts else None


def _numa_node(root: Path, pci_bus: str | None) -> int | None:
    """The NUMA node of a PCI device; None where the system says that it has none (-1)."""
    text = _read(root / "sys/bus/pci/devices" / (pci_bus or "") / "numa_node") or ""
    return int(text) if text.isdigit() else None


def _numa_folders(root: Path) -> list[Path]:
    return list((root / "sys/devices/system/node").glob("node[0-9]*"))


def _number(node: Path) -> int:
    return int(node.name.removeprefix("node"))


def _distances(nodes: Sequence[Path]) -> tuple[tuple[int, ...], ...]:
    rows = [(_read(node / "distance") or "").split() for node in nodes]
    whole = all(len(row) == len(nodes) and all(map(str.isdigit, row)) for row in rows)
    return tuple(tuple(map(int, row)) for row in rows) if whole else ()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
