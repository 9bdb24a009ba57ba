"""Processes of ranks: their cores, limits, start and end."""

import contextlib
import dataclasses
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from scalescope.cores import cores_near, own_cores, share_near, share_of
from scalescope.errors import CannotRun
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.interpreter import python_module
from scalescope.launch.guard import start_guarded
from scalescope.launch.local.logs import end_leftovers, without_perf_maps
from scalescope.launch.private_directory import own_directories
from scalescope.launch.telemetry.load import PROC
from scalescope.results.ranks import RankJob
from scalescope.results.result import Status

# ---- The cores that each rank of this machine is pinned to


Cores = frozenset[int] | None


def cpus_for(
    trial: Trial, rank: int, gpus: Sequence[Gpu] = (), near: Callable[[str | None], Cores] = cores_near
) -> list[int]:
    """The cores a rank is pinned to; none where there are not enough for all, or it is not to be pinned.

    A GPU rank's helpers (loader, watchdogs) run on the same cores, so it gets its whole share of those next
    to its GPU, or of the host's where the system does not say which those are.
    """
    asked = trial.pin_cores
    if asked == "no" or (asked == "auto" and trial.device != "cpu"):
        return []
    cores, ranks = own_cores(), trial.world_size
    if trial.device == "cpu":
        return share_of(cores, trial.threads_per_rank, ranks, rank)
    buses = [_gpu_of(trial, other, gpus) for other in range(ranks)]
    return share_near(cores, [near(bus) for bus in buses], rank) or share_of(
        cores, len(cores) // ranks, ranks, rank
    )


def _gpu_of(trial: Trial, rank: int, gpus: Sequence[Gpu]) -> str | None:
    """The PCI bus of the GPU that a rank uses: the parts of a split GPU are all of the first."""
    if not gpus:
        return None
    return gpus[0 if trial.split_gpu else rank % len(gpus)].pci_bus


# ---- Whether the system lets us open the files and start the processes that ranks need (ulimit -n, -u)


# 24 are too few for two ranks that each import torch and connect to the other; 32 are enough.
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


# ---- Rank processes: started fresh, or forked from a zygote that has torch already imported


_ENDED = "the process that starts the ranks has ended"
START_LIMIT_S = 300.0  # where no --init-timeout is known
_EXIT_STATUS = 49  # among the fields that follow the name of a process, see proc(5)


class RankProcess(Protocol):
    """A started rank; it leads a process group of its own."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        ...


class Spawner(Protocol):
    """Starts rank processes."""

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess: ...

    def wait(self, seconds: float) -> None:
        """Sleep for at most `seconds`, less if a rank ends."""
        ...

    def end_leftovers(self, sessions: Collection[int]) -> list[str]:
        """End what ended ranks have left, and name what had left their `sessions` too."""
        ...


class FreshSpawner:
    """Every rank a new interpreter: what trials with environment variables of their own need."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess:
        job_file = self._directory / f"job-{job.rank}.json"
        try:
            job_file.write_text(job.to_text(), encoding="utf-8")
            return self._start(job_file, environment, log)
        except OSError as error:
            raise SpawnFailed(f"a rank could not be started: {error.strerror}") from None

    def _start(self, job_file: Path, environment: dict[str, str], log: Path) -> RankProcess:
        with log.open("ab") as output:
            return start_guarded(
                python_module("scalescope.worker.process.main", str(job_file)),
                own_session=True,
                removes=own_directories(),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05))

    def end_leftovers(self, sessions: Collection[int]) -> list[str]:
        return []  # the guard of each rank has ended them with the rank


class SpawnFailed(CannotRun):
    """A rank could not be started; the next one may, from a new zygote."""

    status: Status = "failed"


class SpawnTimeout(SpawnFailed):
    """The process that starts the ranks does not answer."""

    status: Status = "hang"


class Zygote:
    """The launcher's end of the zygote process: a spawner whose launches cost a fork.

    Math libraries read OMP_NUM_THREADS when they are loaded: where it says something else, ranks that set
    another number of threads later were seen to compute a tenth slower than under torchrun.
    """

    def __init__(self, threads: int | None = None, limit_s: float = START_LIMIT_S) -> None:
        self.limit_s = limit_s  # for each answer, the first one included
        # One BLAS thread: a thread alive at the fork would be missing in the children.
        environment = {
            **os.environ,
            **without_perf_maps(os.environ),
            "OPENBLAS_NUM_THREADS": "1",
            "KINETO_LOG_LEVEL": "99",
        }
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        try:
            self._guarded = start_guarded(
                python_module("scalescope.worker.process.zygote"),
                removes=own_directories(),
                limit_s=limit_s,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise SpawnFailed(
                f"the process that starts the ranks could not be started: {error.strerror}"
            ) from None
        self._process = self._guarded.guard
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._received = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        self._answers: deque[dict[str, Any]] = deque()
        self._exits: dict[int, int] = {}
        self._buffer = b""
        self._is_loaded = self._is_stopped = False
        try:
            self._is_loaded = self._expect("ready")
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether it runs: one that ended or is stopped starts no ranks."""
        return self._process.poll() is None and not is_stopped(self._guarded.pid)

    def probe(self) -> dict[str, Any]:
        """What the machine can do, found by a forked child that may touch the GPU."""
        self._send({"probe": True})
        machine: dict[str, Any] = self._expect("machine")
        return machine

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess:
        self._send({"fork": dataclasses.asdict(job), "env": environment, "log": str(log)})
        return _ForkedRank(int(self._expect("pid")), self)

    def wait(self, seconds: float) -> None:
        self._read(seconds)
        self._is_stopped = is_stopped(self._guarded.pid)

    def exit_code(self, pid: int) -> int | None:
        """How a rank ended, also while the zygote is stopped and reports no exits."""
        self._read(0)
        if pid not in self._exits and self._is_stopped:
            return exit_code_of_zombie(pid)
        return self._exits.get(pid)

    def close(self) -> None:
        """End the zygote; ranks that still run die with it."""
        self._guarded.end()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def end_leftovers(self, sessions: Collection[int]) -> list[str]:
        return end_leftovers(self._process.pid, self._guarded.pid, sessions)

    def _send(self, request: dict[str, Any]) -> None:
        unsent = json.dumps(request).encode() + b"\n"
        deadline = time.monotonic() + self.limit_s
        try:
            while unsent:
                left_s = max(0.0, deadline - time.monotonic())
                if not select.select([], [self._requests], [], left_s)[1]:
                    raise self._timeout()
                unsent = unsent[os.write(self._requests, unsent) :]
        except OSError:
            raise SpawnFailed(_ENDED) from None

    def _expect(self, key: str) -> Any:
        deadline = time.monotonic() + self.limit_s
        while True:
            while self._answers:
                answer = self._answers.popleft()
                if "error" in answer:
                    raise SpawnFailed(str(answer["error"]))
                if key in answer:
                    return answer[key]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._timeout()
            self._read(min(left_s, 1.0))

    def _timeout(self) -> SpawnTimeout:
        stopped = is_stopped(self._guarded.pid)
        if not self._is_loaded:
            advice = ": its process is stopped by a signal" if stopped else "; --init-timeout gives it longer"
            return SpawnTimeout(f"torch was not loaded within {self.limit_s:g} s{advice}")
        state = "is stopped by a signal" if stopped else "hangs"
        return SpawnTimeout(f"the process that starts the ranks {state}: no answer within {self.limit_s:g} s")

    def _read(self, seconds: float) -> None:
        if not select.select([self._received], [], [], seconds)[0]:
            return
        received = os.read(self._received, 1 << 16)
        if not received:
            raise SpawnFailed(_ENDED if self._is_loaded else f"{_ENDED}; check that torch can be imported")
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        for answer in map(json.loads, lines):
            if "exited" in answer:
                self._exits[answer["exited"]] = answer["status"]
            else:
                self._answers.append(answer)


@dataclasses.dataclass(slots=True)
class _ForkedRank:
    pid: int
    zygote: Zygote

    def poll(self) -> int | None:
        return self.zygote.exit_code(self.pid)


def can_fork() -> bool:
    """Whether a zygote works here. macOS can fork, but its system libraries do not survive it."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # sandboxes may forbid it
        return False
    return True


def signal_group(pid: int, number: int) -> None:
    """Signal a rank and whatever it started; a group that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def is_stopped(pid: int) -> bool:
    """Whether a process is held by SIGSTOP or a debugger, as far as the system shows it."""
    return _stat_of(pid)[:1] in (["T"], ["t"])


def exit_code_of_zombie(pid: int) -> int | None:
    """How a process ended whose parent does not ask for it; None while it runs."""
    stat = _stat_of(pid)
    return os.waitstatus_to_exitcode(int(stat[_EXIT_STATUS])) if stat[:1] == ["Z"] else None


def _stat_of(pid: int) -> list[str]:
    """What the system shows of a process from its state on; nothing where it shows none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return status.rpartition(")")[2].split()
