"""Inspection: what the system reports (/proc, /sys, nvidia-smi, variables), without any judgement."""

import contextlib
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.secret_variables import looks_secret

_GPU_FIELDS = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_event_reasons.active",
    "ecc.mode.current",
    "mig.mode.current",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "power.limit",
    "temperature.gpu",
)
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # drivers before 535
TOOL_LIMIT_S = 5.0  # for questions to programs, which answer within milliseconds or not at all
_END_LIMIT_S = 1.0
# An allow-list: all other variables may be secrets and are never recorded.
_RECORDED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "GLOO_", "OMP_", "MKL_", "KMP_", "CUDA_")
_RECORDED_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")


def inspect_system(root: Path = Path("/"), tool_limit_s: float = TOOL_LIMIT_S) -> dict[str, Any]:
    """Everything the checks need; what cannot be read is None or missing."""
    smi = _NvidiaSmi(tool_limit_s)
    return {
        "gpus": smi.gpus(),
        "link_matrix": smi.output("topo", "-m"),
        "gpu_processes": smi.processes(),
        "interfaces": _interfaces(root / "sys/class/net"),
        "infiniband": _infiniband(root / "sys/class/infiniband"),
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "shared_memory_bytes": _free_bytes(root / "dev/shm"),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_memory_limit": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "cgroup_cpus": _cgroup_cpus(root / "sys/fs/cgroup/cpu.max"),
        "cgroup_memory_bytes": _cgroup_memory(root / "sys/fs/cgroup/memory.max"),
        "load_average": os.getloadavg()[0],
        "variables": recorded_variables(os.environ),
    }


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="backslashreplace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed variables that are set."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(_RECORDED_PREFIXES) or name in _RECORDED_NAMES) and not looks_secret(name, value)
    }


def own_address() -> str | None:
    """The address of the host's name, which gloo gives to other hosts. May ask a name server."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def run_tool(
    command: Sequence[str],
    *,
    limit_s: float = TOOL_LIMIT_S,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a program and take its output, bytes that are not UTF-8 spelled out; OSError, TimeoutExpired.

    What it started ends with it. One that the kernel does not let go of is left behind, not waited for.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        encoding="utf-8",
        errors="backslashreplace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT_S)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


class _NvidiaSmi:
    """Questions to nvidia-smi; one that does not answer in time is not asked again."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._path = shutil.which("nvidia-smi")

    def output(self, *arguments: str) -> str | None:
        """What it prints; None if it is missing, fails or hangs."""
        if self._path is None:
            return None
        try:
            done = run_tool([self._path, *arguments], limit_s=self._limit_s)
        except subprocess.TimeoutExpired:
            self._path = None
            return None
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    def gpus(self) -> list[dict[str, str]]:
        text = self._query(_GPU_FIELDS) or self._query(
            tuple(_OLD_NAMES.get(name, name) for name in _GPU_FIELDS)
        )
        lines = (text or "").strip().splitlines()
        return [
            dict(zip(_GPU_FIELDS, map(str.strip, line.split(",")), strict=False)) for line in lines if line
        ]

    def processes(self) -> list[str]:
        text = self.output("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
        return [line for line in (text or "").strip().splitlines() if line[:1].isdigit()]

    def _query(self, fields: tuple[str, ...]) -> str | None:
        return self.output(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def _interfaces(folder: Path) -> list[dict[str, Any]]:
    interfaces = []
    for path in sorted(path for path in folder.glob("*") if path.is_dir()):  # bonding_masters is a file
        speed = _read(path / "speed")
        interfaces.append(
            {
                "name": path.name,
                "state": _read(path / "operstate"),
                "speed_mbit": int(speed) if speed and speed.isdigit() else None,
            }
        )
    return interfaces


def _infiniband(folder: Path) -> list[dict[str, Any]]:
    return [
        {"name": port.parent.parent.name, "state": _read(port / "state"), "rate": _read(port / "rate")}
        for port in sorted(folder.glob("*/ports/*"))
    ]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="backslashreplace").strip()
    except OSError:
        return None


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _cgroup_cpus(path: Path) -> float | None:
    words = (_read(path) or "").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None


def _cgroup_memory(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text and text.isdigit() else None
