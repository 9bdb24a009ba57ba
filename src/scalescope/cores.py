"""Deals the host's cores out to ranks, so that every rank owns whole cores and as many as the others."""

import os
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


def usable_cores() -> int:
    """How many cores this process may use: its affinity, and a container's quota where there is one."""
    dealt_out = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if dealt_out else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def own_cores() -> list[int]:
    """The CPUs to pin ranks to, siblings of one physical core beside each other.

    None under a container's quota: it names no CPUs, and every container would pin to the same first ones.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = os.sched_getaffinity(0)
    return by_topology(cpus) if usable_cores() == len(cpus) else []


def by_topology(cpus: set[int], pattern: str = _TOPOLOGY) -> list[int]:
    """Order CPUs by socket and physical core.

    By number alone, the first half of a machine would be one thread of every core and the second half their
    siblings: two ranks would then share the cores that one rank had to itself.
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
    """The cores of the rank at `place` among `ranks`; none where there are not enough for all.

    Ranks start evenly apart, so that few threads a rank do not end up as siblings on one physical core.
    """
    if threads * ranks > len(cores):
        return []
    begin = index * (len(cores) // ranks)
    return cores[begin : begin + threads]
