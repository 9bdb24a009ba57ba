"""Provenance: hardware, versions, code state and the environment variables that change measurements."""

import dataclasses
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import differences
from scalescope.inspection import recorded_variables
from scalescope.results.result import Result

# What may differ between two runs that are still the same machine: its name, and what was measured of it. The
# model of a processor or GPU stands for what it can do, and runs older than these facts keep their id.
_NOT_IDENTITY = ("host", "precisions", "core_flops_per_s")
_NOT_IDENTITY_OF_GPU = ("uuid", "pci_bus", "compute_capability", "precisions")
# What ranks record about the file of a user's workload.
WORKLOAD_FILE = "workload_file"
WORKLOAD_SHA256 = "workload_sha256"


def sha256_of(path: Path) -> str | None:
    """The SHA-256 of a file; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class WorkloadFile:
    """The file of a user's workload as a launch used it."""

    path: Path
    sha256: str


def workload_files(results: Iterable[Result]) -> dict[str, tuple[WorkloadFile, ...]]:
    """By workload, the files that launches used: one, unless it changed; launches of earlier versions do not
    say."""
    files: dict[str, dict[WorkloadFile, None]] = {}
    for result in results:
        for record in result.ranks[:1]:
            path, sha256 = record.counters.get(WORKLOAD_FILE), record.counters.get(WORKLOAD_SHA256)
            if isinstance(path, str) and isinstance(sha256, str):
                files.setdefault(result.trial.workload, {})[WorkloadFile(Path(path), sha256)] = None
    return {workload: tuple(used) for workload, used in files.items()}


def describe_environment(
    machine: Machine, version: str, nodes: Mapping[str, Machine] | None = None
) -> dict[str, Any]:
    """Everything environment.json holds; `nodes` are the hosts of the ranks, where they are several."""
    facts = dataclasses.asdict(machine)
    nodes = nodes or {machine.host: machine}
    return {
        "environment_id": environment_id(machine),
        "scalescope_version": version,
        "machine": facts,
        "nodes": {host: dataclasses.asdict(node) for host, node in nodes.items()},
        "node_differences": [difference.to_json() for difference in differences(nodes)],
        "variables": recorded_variables(os.environ),
        "git": git_state(Path.cwd()),
    }


def environment_id(machine: Machine) -> str:
    """Hash of hardware and versions: equal where two runs may be compared."""
    facts = {k: v for k, v in dataclasses.asdict(machine).items() if k not in _NOT_IDENTITY}
    if machine.ranks_per_node is None:
        del facts["ranks_per_node"]  # older than the field: runs of one host keep their id
    facts["gpus"] = [
        {name: value for name, value in gpu.items() if name not in _NOT_IDENTITY_OF_GPU}
        for gpu in facts["gpus"]
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit and cleanliness of the code around `directory`; None outside a checkout or without git."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
