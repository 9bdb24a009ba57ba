"""A host's topology in words, for `check` and wherever nodes are listed."""

from collections.abc import Iterator

from scalescope.results.topology import NicSite, Topology, core_list


def topology_lines(topology: Topology) -> Iterator[tuple[str, str]]:
    """(subject, text) of its NUMA nodes, GPUs and network cards."""
    if topology.numa_cores:
        yield "NUMA", numa_text(topology)
    if topology.gpus:
        yield "GPU links", gpus_text(topology)
    for nic in topology.nics:
        near = [
            gpu.index for gpu in topology.gpus if topology.nic_paths.get(f"{gpu.index}-{nic.name}") == "PIX"
        ]
        near_text = f", next to GPU {', '.join(map(str, near))}" if near else ""
        node = "" if nic.numa_node is None else f", NUMA node {nic.numa_node}"
        yield "card", f"{nic.name}: {nic_text(nic)}{node}{near_text}"


def numa_text(topology: Topology) -> str:
    """`2 (cores 0-31; 32-63), distance up to 21`."""
    if not topology.numa_cores:
        return "unknown"
    cores = "; ".join(core_list(members) for members in topology.numa_cores.values() if members)
    others = [
        distance
        for number, row in enumerate(topology.numa_distances)
        for column, distance in enumerate(row)
        if number != column
    ]
    far = f", distance up to {max(others)}" if others else ""
    return f"{len(topology.numa_cores)} (cores {cores}){far}"


def nic_text(nic: NicSite) -> str:
    """`infiniband 400 Gbit/s`: what cards are sold by."""
    rate = nic.rate_bytes_per_s
    return f"{nic.kind or 'unknown kind'} {'rate unknown' if rate is None else f'{rate * 8 / 1e9:g} Gbit/s'}"


def gpus_text(topology: Topology) -> str:
    """`8 × NVIDIA H100, NVLink 4 × 18, PCIe 5 × 16, paths NV18`."""
    if not topology.gpus:
        return "none"
    first = topology.gpus[0]
    parts = [f"{len(topology.gpus)} × {first.name or 'GPU'}"]
    if first.nvlink_version is not None and first.nvlink_count:
        parts.append(f"NVLink {first.nvlink_version} × {first.nvlink_count}")
    if first.pcie_generation is not None and first.pcie_width is not None:
        parts.append(f"PCIe {first.pcie_generation} × {first.pcie_width}")
    if topology.gpu_paths:
        parts.append(f"paths {', '.join(sorted(set(topology.gpu_paths.values())))}")
    return ", ".join(parts)
