"""What ranks leave behind: processes that detached themselves, and files that libraries write."""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from scalescope.launch.telemetry.load import PROC, process_tree
from scalescope.results.printable import printable

_LIMIT_S = 3.0  # a process inside the kernel can outlast SIGKILL; it must not hold us too
# oneDNN writes /tmp/perf-PID.map on some processors, one for each rank; 1 is its documented default.
_JIT_PROFILE = {"ONEDNN_JIT_PROFILE": "1"}
_NAMES_SHOWN = 5


def end_leftovers(guard: int, zygote: int, sessions: Collection[int]) -> list[str]:
    """End everything below a guard but its zygote; returns the names of those in sessions of their own."""
    names: dict[int, str] = {}
    deadline = time.monotonic() + _LIMIT_S
    while left := [pid for pid in process_tree(PROC, guard) if pid not in (guard, zygote) and _lives(pid)]:
        for pid in left:
            if pid not in names and _session(pid) not in {*sessions, None}:
                names[pid] = _name(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return list(names.values())


def leftover_notes(names: Sequence[str]) -> list[str]:
    """That processes had to be ended, by name; empty where there were none."""
    if not names:
        return []
    shown = ", ".join(sorted(set(names))[:_NAMES_SHOWN])
    plural = "process" if len(names) == 1 else "processes"
    return [f"{len(names)} detached {plural} outlived the ranks and were ended: {shown}"]


def without_perf_maps(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variable that keeps oneDNN from leaving files in /tmp, unless the user has set it."""
    is_set = any(name in inherited for name in ("ONEDNN_JIT_PROFILE", "DNNL_JIT_PROFILE"))
    return {} if is_set else _JIT_PROFILE


def _lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not collected yet does not."""
    try:
        return _fields(pid)[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _fields(pid: int) -> list[str]:
    """State and numbers of a process, behind its name."""
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return printable(Path(PROC / str(pid) / "comm").read_text(errors="replace").strip())
    return "unknown"
