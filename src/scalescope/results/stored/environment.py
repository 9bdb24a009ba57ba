"""environment.json as its readers expect it: what has another type is left out, and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalescope.results.run_folder import ENVIRONMENT
from scalescope.results.stored.regular_files import read_json, why_unreadable
from scalescope.results.stored.shapes import ANY_KEY, NUMBER, Row, fitting

_PRECISION = Row({"name": str, "native": bool, "slowdown": NUMBER}, "name")
_GPU = Row(
    {
        "index": int,
        "name": str,
        "memory_bytes": int,
        "uuid": str,
        "pci_bus": str,
        "compute_capability": [int],
        "precisions": [_PRECISION],
    },
    "name",
)
_MACHINE = {
    "host": str,
    "system": str,
    "architecture": str,
    "cpu_model": str,
    "cores": int,
    "memory_bytes": int,
    "python_version": str,
    "torch_version": str,
    "cuda_version": str,
    "nccl_version": str,
    "driver_version": str,
    "backends": [str],
    "gpus": [_GPU],
    "gpu_problem": str,
    "ranks_per_node": int,
    "precisions": [_PRECISION],
    "core_flops_per_s": NUMBER,
}
_GPU_SITE = Row(
    {
        "index": int,
        "uuid": str,
        "name": str,
        "pci_bus": str,
        "numa_node": int,
        "nvlink_version": int,
        "nvlink_count": int,
        "pcie_generation": int,
        "pcie_width": int,
    },
    "index",
)
_NIC_SITE = Row(
    {"name": str, "kind": str, "rate_bytes_per_s": NUMBER, "pci_bus": str, "numa_node": int}, "name"
)
_TOPOLOGY = {
    "gpus": [_GPU_SITE],
    "nics": [_NIC_SITE],
    "gpu_paths": {ANY_KEY: str},
    "nic_paths": {ANY_KEY: str},
    "numa_cores": {ANY_KEY: [int]},
    "numa_distances": [[int]],
}
_INTERFACE = Row({"name": str, "state": str, "speed_bytes_per_s": NUMBER, "addresses": [str]}, "name")
_SYSTEM: dict[str, Any] = {"interfaces": [_INTERFACE]}
_LONGEST_NODE = 6  # digits
_DIFFERENCE = {"name": str, "values": {ANY_KEY: [str]}}
_SHAPE: dict[str, Any] = {
    "environment_id": str,
    "scalescope_version": str,
    "machine": _MACHINE,
    "nodes": {ANY_KEY: _MACHINE},
    "variables": {ANY_KEY: str},
    "git": {"commit": str, "changed": bool},
    "system": _SYSTEM,
    "systems": {ANY_KEY: _SYSTEM},
    "starts": [[str]],
    "load_at_start": {},
}


def read_environment(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The environment of a run, empty where there is none, and warnings about what is left out."""
    path = folder / ENVIRONMENT
    stored = read_json(path)
    if stored is None:
        problem = why_unreadable(path)
        return {}, () if problem is None else (problem,)
    warnings: list[str] = []
    kept = fitting(stored, _SHAPE, "", lambda problem: warnings.append(f"{path}: left out: {problem}"))
    environment = kept or {}
    if environment.get("machine") is None:
        environment.pop("machine", None)  # no run stores that it has none
    return _with_whole_parts(environment, path, warnings), tuple(warnings)


def _with_whole_parts(environment: dict[str, Any], path: Path, warnings: list[str]) -> dict[str, Any]:
    """Without what is only of use when nothing of it is missing, and what two versions store differently."""
    differences = environment.get("node_differences")
    if differences is not None:
        members = differences if isinstance(differences, list) else []
        kept = [member for member in members if isinstance(member, str) or _is_whole_difference(member)]
        if kept != differences:
            warnings.append(f"{path}: left out: node_differences: expected a list of differences")
        environment["node_differences"] = kept
    systems = [environment.get("system"), *(environment.get("systems") or {}).values()]
    for system in systems:
        if system and isinstance(topology := system.get("topology"), dict):
            system["topology"] = _topology(
                topology, lambda text: warnings.append(f"{path}: left out: {text}")
            )
    return environment


def _topology(stored: dict[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    topology: dict[str, Any] = fitting(stored, _TOPOLOGY, "topology", warn) or {}
    nodes = topology.get("numa_cores") or {}
    if not all(node.isdecimal() and len(node) <= _LONGEST_NODE for node in nodes):
        warn("topology.numa_cores: expected numbers of NUMA nodes")
        del topology["numa_cores"]
    rows = topology.get("numa_distances") or []
    if any(len(row) != len(rows) for row in rows):  # distances are found by their position
        warn("topology.numa_distances: expected as many rows as columns")
        del topology["numa_distances"]
    return {name: part for name, part in topology.items() if part is not None}


def _is_whole_difference(member: object) -> bool:
    misfits: list[str] = []
    kept = fitting(member, _DIFFERENCE, "", misfits.append)
    return bool(kept) and not misfits and {"name", "values"} <= set(kept) and None not in kept.values()
