"""Whether the system lets us open the files and start the processes that ranks need (ulimit -n, -u)."""

import contextlib
import os
import resource

from scalescope.errors import CannotRun
from scalescope.launch.telemetry.load import PROC

# 24 are too few for two ranks, of which each imports torch and connects to the other; 32 are enough.
_DESCRIPTORS, _DESCRIPTORS_PER_RANK = 28, 4
_THREADS_PER_RANK = 6  # besides those that compute: of the group, of autograd


def check_limits(ranks: int, threads: int) -> None:
    """Refuse what would fail half-way, with a message of some library, or hang."""
    _check_descriptors(ranks)
    _check_processes(ranks, threads)


def _check_descriptors(ranks: int) -> None:
    needed = _DESCRIPTORS + _DESCRIPTORS_PER_RANK * ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise CannotRun(
            f"only {hard} files may be open (ulimit -Hn), and {_need(ranks)} {needed}; raise that limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # ranks inherit it


def _check_processes(ranks: int, threads: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.getuid() == 0:  # the limit does not apply to root
        return
    needed, left = ranks * (threads + _THREADS_PER_RANK), limit - _threads_of_user()
    if left < needed:
        raise CannotRun(
            f"{max(0, left)} of {limit} processes and threads are left (ulimit -u), and "
            f"{_need(ranks)} {needed}; end others or raise that limit"
        )


def _need(ranks: int) -> str:
    return "1 rank needs" if ranks == 1 else f"{ranks} ranks need"


def _threads_of_user() -> int:
    """As the system counts against the limit; 0 where it does not show processes."""
    count = 0
    with contextlib.suppress(OSError):
        for process in PROC.iterdir():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if process.name.isdecimal() and process.stat().st_uid == os.getuid():
                    count += sum(1 for _ in (process / "task").iterdir())
    return count
