"""What this machine allows: loopback addresses, kills for want of memory, and what torch finds."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.errors import CannotRun
from scalescope.experiment.machine import Machine
from scalescope.host_memory import group_files
from scalescope.interpreter import python_module

# ---- Keeps the traffic of ranks that are all on this machine on it


_NAME = "lo" if sys.platform == "linux" else "lo0"
LOOPBACK = {"GLOO_SOCKET_IFNAME": _NAME, "NCCL_SOCKET_IFNAME": _NAME}


# ---- MemoryKills: whether the kernel ended a process for want of memory during a launch, by its counters


OUT_OF_MEMORY = "killed a process because its control group was out of memory"
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """The counts before a launch, to compare with; ranks are in the control group of whoever asks."""

    def __init__(self, root: Path = Path("/")) -> None:
        # The nearest group counts what happens to its processes, whichever limit above them was reached.
        files = group_files(root, "memory.events", "memory.oom_control")
        self._of_group = next((path for path in files if _count(path) is not None), None)
        self._of_host = root / "proc/vmstat"
        self._before = {path: _count(path) for path in (self._of_group, self._of_host) if path is not None}

    def ended(self, exit_code: int | None) -> bool:
        """Whether a process with that exit code was ended for want of memory: its group's counter rose."""
        return exit_code == -signal.SIGKILL and self.in_group

    @property
    def in_group(self) -> bool:
        """Whether the kernel ended any process of this control group since."""
        return self._rose(self._of_group)

    def text(self, exit_code: int | None) -> str:
        """What the counters say about a process that was killed; empty where they say nothing."""
        if self.ended(exit_code):
            return f": the kernel {OUT_OF_MEMORY}"
        if exit_code == -signal.SIGKILL and self._rose(self._of_host):
            return ": likely out of memory: meanwhile the kernel killed a process on this host"
        return ""

    def _rose(self, path: Path | None) -> bool:
        if path is None:
            return False
        before, now = self._before[path], _count(path)
        return before is not None and now is not None and now > before


def _count(path: Path) -> int | None:
    try:
        match = _COUNT.search(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None


# ---- Finds out what torch can do here, without importing it into this process


_LEAST_TORCH = (2, 6)


def probe_in_new_process(*starter: str, limit_s: float = 300.0) -> dict[str, Any]:
    """Run the worker's probe as a process of its own; `starter` are words that run it elsewhere."""
    command = [*starter, *python_module("scalescope.worker.machine.probe")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise CannotRun(
            f"probing the machine took longer than {limit_s:g} s; use --init-timeout to allow more time"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotRun(f"torch cannot be used here: {last}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host as its ranks probed it; the first of them probed all of it."""

    machine: Machine
    system: dict[str, Any]
    ranks: tuple[int, ...]
    first_rank: int  # the one that probed it
    pids: tuple[int, ...] = ()  # of the ranks' processes


def nodes_from_probes(probes: list[dict[str, Any]]) -> dict[str, Node]:
    """Every node by name, from what its ranks probed: cores and GPUs may be divided among them.

    `probes` has one entry per rank, in their order.
    """
    nodes: dict[str, Node] = {}
    for number in dict.fromkeys(probe["node"] for probe in probes):
        ranks = {rank: probe for rank, probe in enumerate(probes) if probe["node"] == number}
        node_probes = list(ranks.values())
        first = next((probe for probe in node_probes if probe["machine"]), None)
        name = node_probes[0]["host"]
        if first is None:
            raise CannotRun(f"no rank of {name} has LOCAL_RANK 0, so that node was not probed")
        raw = {
            **first["machine"],
            "cores": _cores(first["machine"], node_probes),
            "gpus": _gpus(first["machine"], node_probes),
        }
        try:
            machine = machine_from_probe(raw)
        except CannotRun as error:
            raise CannotRun(f"{name}: {error}") from None
        nodes[name if name not in nodes else f"{name} (node {number})"] = Node(
            machine=machine,
            system=first["system"],
            ranks=tuple(ranks),
            first_rank=next(rank for rank, probe in ranks.items() if probe is first),
            pids=tuple(probe["pid"] for probe in node_probes if "pid" in probe),
        )
    return nodes


def _cores(raw: dict[str, Any], ranks: list[dict[str, Any]]) -> int:
    """All cores of the ranks together, and no more than SLURM gave them."""
    visible = len({core for rank in ranks for core in rank["cores"]}) or int(raw["cores"])
    granted = sum(rank["cpus_per_task"] for rank in ranks)
    return min(visible, granted) if granted else visible


def _gpus(raw: dict[str, Any], ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the first rank sees, and what only others see."""
    gpus = {gpu["uuid"]: gpu for gpu in raw["gpus"]}
    for rank in ranks:
        if rank["gpu"]:
            gpus.setdefault(rank["gpu"]["uuid"], rank["gpu"])
    return list(gpus.values())


def machine_from_probe(raw: dict[str, Any]) -> Machine:
    """The probe's facts, refused where torch is too old to be measured."""
    machine = Machine.from_json(raw)
    version = machine.torch_version.partition("+")[0].split(".")
    numbers = tuple(int(part) for part in version[:2] if part.isdigit())
    if numbers < _LEAST_TORCH:
        raise CannotRun(f"torch 2.6 or newer is required, found {machine.torch_version}")
    return machine
