"""MemoryUse: samples of the memory that ranks are limited in, as evidence of why one of them died.

A library that gets no more memory often crashes instead of raising an error. The signal alone does not say
so: the last samples before it do.
"""

import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.host_memory import group_files, read_text
from scalescope.quantities import data_size

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
