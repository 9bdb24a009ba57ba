"""Divides the host's cores among ranks: every rank gets whole cores, and as many as the others."""

import os
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


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

    Ranks are spaced evenly, so that few threads per rank are not siblings on one physical core.
    """
    if threads * ranks > len(cores):
        return []
    begin = index * (len(cores) // ranks)
    return cores[begin : begin + threads]
