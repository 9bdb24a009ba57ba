"""Divides the host's cores among ranks: every rank gets whole cores, next to its GPU where that is known."""

import os
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
_PCI_DEVICES = Path("/sys/bus/pci/devices")


def usable_cores() -> int:
    """How many cores this process may use, by its affinity and by a container's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def own_cores() -> list[int]:
    """The CPUs to pin ranks to, with siblings of a physical core next to each other.

    Empty under a container's quota: it names no CPUs, and every container would pin to the same first ones.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = os.sched_getaffinity(0)
    return by_topology(cpus) if usable_cores() == len(cpus) else []


def by_topology(cpus: set[int], pattern: str = _TOPOLOGY) -> list[int]:
    """Order CPUs by socket and physical core.

    In numerical order, the first half of a machine is often one thread of every core and the second half
    their siblings: two ranks would then share physical cores.
    """

    def topology_key(cpu: int) -> tuple[int, int, int]:
        folder = Path(pattern.format(cpu))
        socket = int((folder / "physical_package_id").read_text())
        return socket, int((folder / "core_id").read_text()), cpu

    try:
        return sorted(cpus, key=topology_key)
    except (OSError, ValueError):
        return sorted(cpus)


def share_of(cores: list[int], threads: int, ranks: int, index: int) -> list[int]:
    """The cores of rank number `index` of `ranks`; empty if there are not enough for all.

    Ranks are spaced evenly: few threads per rank are then not siblings on one physical core.
    """
    if threads * ranks > len(cores):
        return []
    begin = index * (len(cores) // ranks)
    return cores[begin : begin + threads]


def cores_near(pci_bus: str | None, devices: Path = _PCI_DEVICES) -> frozenset[int] | None:
    """The CPUs on the NUMA node of a PCI device such as 0000:1b:00.0; None where the system does not say."""
    if pci_bus is None:
        return None
    try:
        return frozenset(_cpus_of_list((devices / pci_bus / "local_cpulist").read_text()))
    except (OSError, ValueError):
        return None


def share_near(cores: list[int], near: Sequence[frozenset[int] | None], index: int) -> list[int]:
    """The cores of rank number `index`, divided among the ranks whose GPUs are on the same NUMA node.

    `near` has the CPUs next to each rank's GPU. Empty for every rank where that is unknown for any of them,
    or a node has too few cores for its ranks: some would then share cores that others count on.
    """
    local = [frozenset(cores) & cpus if cpus else frozenset[int]() for cpus in near]
    nodes = {cpus: local.count(cpus) for cpus in local}
    overlap = sum(map(len, nodes)) > len(frozenset[int]().union(*nodes))
    if overlap or any(len(cpus) < ranks for cpus, ranks in nodes.items()):
        return []
    members = [rank for rank, cpus in enumerate(local) if cpus == local[index]]
    ordered = [core for core in cores if core in local[index]]
    return share_of(ordered, len(ordered) // len(members), len(members), members.index(index))


def _cpus_of_list(text: str) -> set[int]:
    """The numbers of a list such as 0-31,64-95, as the kernel writes it."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus
