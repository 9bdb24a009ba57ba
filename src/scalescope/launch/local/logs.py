"""What ranks left behind: logs, files, how much memory they used, and what that says."""

import contextlib
import dataclasses
import os
import platform
import re
import signal
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.cores import usable_cores
from scalescope.experiment.machine import Gpu, Machine
from scalescope.host_memory import group_files, read_text, usable_memory
from scalescope.launch.launcher import Outcome
from scalescope.launch.telemetry.load import PROC, process_tree
from scalescope.launch.telemetry.nvml import gpu_totals
from scalescope.quantities import data_size
from scalescope.results.printable import printable
from scalescope.results.ranks import find_disagreement, read_calls

# ---- What ranks leave behind: processes that detached themselves, and files that libraries write


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


# ---- Logs of ranks and commands: kept from filling the disk, their end kept readable


_LARGEST_BYTES = 64 << 20
_KEPT_END_BYTES = 64 << 10  # what was printed last says why a process ended


def cap_log(log: Path) -> None:
    """Shorten a log that became too large; its writer appends, so it writes on."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= _LARGEST_BYTES:
            return
        half = _LARGEST_BYTES // 2
        end = tail_of(log, min(half, _KEPT_END_BYTES))
        os.truncate(log, half - len(end))
        with log.open("ab") as file:
            file.write(end)


def tail_of(log: Path, size: int) -> bytes:
    """At most the last `size` bytes of a file; nothing where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except OSError:
        return b""


# ---- Names both ranks where they call different collectives; the one that the library ends is not the cause


def explained_by_calls(outcome: Outcome, directory: Path, world_size: int) -> Outcome:
    """The outcome of a launch, which has failed by disagreement where its ranks' last calls differ."""
    if outcome.status not in ("failed", "hang") or outcome.bad_input:
        return outcome
    disagreement = find_disagreement(read_calls(directory, world_size))
    if disagreement is None:
        return outcome
    (first, second), calls = disagreement.ranks, disagreement.calls
    where = "" if outcome.step is None else f" at step {outcome.step}"
    return dataclasses.replace(
        outcome,
        status="failed",
        rank=None,
        reason=f"ranks {first} and {second} call different collectives{where}: "
        f"rank {first} {calls[0]}, rank {second} {calls[1]}",
    )


# ---- MemoryUse: samples of the memory that ranks are limited in, as evidence of why one of them died


# What a library without memory ends with, and what the kernel sends.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL}
_NEAR = 0.1  # of the limit: the allocation that failed is not in the sample
_LAST_S = 1.0  # before the end of a rank


@dataclass(slots=True)
class _Highest:
    """The sample with the least room among those of the last second."""

    used: int
    limit: int
    at: float


@dataclass(slots=True)
class MemoryUse:
    """`per_rank`: the bytes that each rank may allocate beyond what it had when it was limited."""

    per_rank: int | None = None
    root: Path = Path("/")
    _of_ranks: dict[int, _Highest] = field(default_factory=dict)
    _of_group: _Highest | None = None
    _groups: list[tuple[Path, int]] | None = None  # those that have a limit, and the limit

    def sample(self, pids: Iterable[int], now: float | None = None) -> None:
        """Look at the processes that run, and at the control group they share with us."""
        now = time.monotonic() if now is None else now
        if self.per_rank is not None:
            for pid in pids:
                if (room := self._room_of(pid)) is not None:
                    sample = _Highest(self.per_rank - room, self.per_rank, now)
                    self._of_ranks[pid] = _fuller(self._of_ranks.get(pid), sample)
        for folder, limit in self._limited_groups():
            if (used := _held_by(folder)) is not None:
                self._of_group = _fuller(self._of_group, _Highest(used, limit, now))

    def evidence(self, pid: int, exit_code: int | None) -> str:
        """That a rank was at its limit when a signal ended it; empty where the samples do not show it."""
        if exit_code is None or -exit_code not in _CRASHES:
            return ""
        own = self._of_ranks.get(pid)
        if own is not None and _is_near(own):
            return f"it had allocated {data_size(own.used)} of the {data_size(own.limit)} of --memory-limit"
        group = self._of_group
        if group is not None and _is_near(group):
            return f"its control group held {data_size(group.used)} of {data_size(group.limit)}"
        return ""

    def _room_of(self, pid: int) -> int | None:
        """How many bytes of data a process may still allocate; None without a limit."""
        folder = self.root / "proc" / str(pid)
        limit = re.search(r"^Max data size\s+(\d+)\s", read_text(folder / "limits"), re.MULTILINE)
        used = re.search(r"^VmData:\s+(\d+) kB$", read_text(folder / "status"), re.MULTILINE)
        return int(limit[1]) - int(used[1]) * 1024 if limit and used else None

    def _limited_groups(self) -> list[tuple[Path, int]]:
        if self._groups is None:
            files = group_files(self.root, "memory.max", "memory.limit_in_bytes")
            limits = [(path.parent, read_text(path).strip()) for path in files]
            # The first version of groups says "none" with a number near 2^63.
            self._groups = [
                (folder, int(text)) for folder, text in limits if text.isdigit() and int(text) < 1 << 60
            ]
        return self._groups


def _fuller(kept: _Highest | None, new: _Highest) -> _Highest:
    if kept is None or new.at - kept.at > _LAST_S or new.limit - new.used <= kept.limit - kept.used:
        return new
    return kept


def _is_near(sample: _Highest) -> bool:
    return sample.limit - sample.used <= _NEAR * sample.limit


def _held_by(folder: Path) -> int | None:
    """Bytes of a control group that cannot be dropped: caches of files fill any group, and say nothing."""
    kinds = dict(
        re.findall(r"^(anon|shmem|total_rss|total_shmem) (\d+)$", read_text(folder / "memory.stat"), re.M)
    )
    return sum(map(int, kinds.values())) if kinds else None


# ---- What is known of this machine before torch is loaded: enough to refuse what can never run here


# Of NVIDIA's cards and boards, of AMD, and of any inside Windows' Linux.
_GPU_FILES = (
    "dev/nvidia*",
    "proc/driver/nvidia/gpus/*",
    "dev/nvgpu*",
    "dev/nvhost*",
    "dev/nvmap",
    "dev/kfd",
    "dev/dxg",
)


def outlook(devices: Sequence[str], root: Path = Path("/")) -> Machine | None:
    """The machine as the system shows it; None where only torch knows which device ranks would use.

    GPUs are at most those listed here: torch may be unable to use one of them.
    """
    gpus: tuple[Gpu, ...] = ()
    if set(devices) != {"cpu"} and gpus_present(root):
        gpus = visible_gpus(gpu_totals(), os.environ) or ()
        if not gpus:
            return None
    return Machine(
        host=socket.gethostname(),
        system=platform.system(),
        architecture=platform.machine(),
        cpu_model="unknown",
        cores=usable_cores(),
        memory_bytes=usable_memory(root),
        python_version=platform.python_version(),
        torch_version="unknown",
        cuda_version=None,
        nccl_version=None,
        driver_version=None,
        backends=("gloo", "nccl") if gpus else ("gloo",),
        gpus=gpus,
        gpu_problem=None,
    )


def gpus_present(root: Path = Path("/")) -> bool:
    """Whether the system shows a GPU of any make."""
    return any(any(root.glob(pattern)) for pattern in _GPU_FILES)


def visible_gpus(
    totals: Sequence[tuple[str, str, int]] | None, environment: Mapping[str, str]
) -> tuple[Gpu, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; None where that cannot be said."""
    if totals is None:
        return None
    gpus = tuple(
        Gpu(index=index, name=name, memory_bytes=size, uuid=uuid)
        for index, (uuid, name, size) in enumerate(totals)
    )
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    numbers = [part.strip() for part in chosen.split(",")]
    if not all(number.isdigit() and int(number) < len(gpus) for number in numbers):
        return None  # names of GPUs or of their parts
    # Their order may differ from NVML's: what is said of one must hold for all.
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes)
    return tuple(
        Gpu(index=index, name=largest.name, memory_bytes=largest.memory_bytes, uuid=str(index))
        for index in range(len(numbers))
    )
