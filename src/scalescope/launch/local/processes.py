"""Rank processes: started fresh, or forked from a zygote that has torch already imported."""

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from scalescope.errors import CannotRun
from scalescope.interpreter import python_module
from scalescope.results.ranks.rank_job import RankJob

_ZYGOTE_START_LIMIT_S = 300.0


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


class FreshSpawner:
    """Every rank a new interpreter: what trials with environment variables of their own need."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess:
        job = dataclasses.replace(job, parent=os.getpid())
        job_file = self._directory / f"job-{job.rank}.json"
        try:
            job_file.write_text(job.to_text(), encoding="utf-8")
            return self._start(job_file, environment, log)
        except OSError as error:
            raise SpawnFailed(f"a rank could not be started: {error.strerror}") from None

    def _start(self, job_file: Path, environment: dict[str, str], log: Path) -> RankProcess:
        with log.open("ab") as output:
            return subprocess.Popen(
                python_module("scalescope.worker.process.main", str(job_file)),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05))


class SpawnFailed(CannotRun):
    """A rank could not be started; the next one may, from a new zygote."""


class Zygote:
    """The launcher's end of the zygote process: a spawner whose launches cost a fork."""

    def __init__(self) -> None:
        # One BLAS thread: a thread alive at the fork would be missing in the children.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
        self._process = subprocess.Popen(
            python_module("scalescope.worker.process.zygote", str(os.getpid())),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._answers: deque[dict[str, Any]] = deque()
        self._exits: dict[int, int] = {}
        self._buffer = b""
        self._expect("ready")

    def probe(self) -> dict[str, Any]:
        """What the machine can do, found by a forked child that may touch the GPU."""
        self._send({"probe": True})
        machine: dict[str, Any] = self._expect("machine")
        return machine

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess:
        job = dataclasses.replace(job, parent=self._process.pid)
        self._send({"fork": dataclasses.asdict(job), "env": environment, "log": str(log)})
        return _ForkedRank(int(self._expect("pid")), self)

    def wait(self, seconds: float) -> None:
        self._read(seconds)

    def exit_code(self, pid: int) -> int | None:
        self._read(0)
        return self._exits.get(pid)

    def close(self) -> None:
        """End the zygote; ranks that still run die with it."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise SpawnFailed("the process that starts the ranks has ended") from None

    def _expect(self, key: str) -> Any:
        deadline = time.monotonic() + _ZYGOTE_START_LIMIT_S
        while time.monotonic() < deadline:
            while self._answers:
                answer = self._answers.popleft()
                if "error" in answer:
                    raise SpawnFailed(str(answer["error"]))
                if key in answer:
                    return answer[key]
            self._read(1.0)
        raise CannotRun(f"torch was not loaded within {_ZYGOTE_START_LIMIT_S:.0f} s")

    def _read(self, seconds: float) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], seconds)[0]:
            return
        received = os.read(descriptor, 1 << 16)
        if not received:
            raise SpawnFailed("the process that starts the ranks has ended; check that torch can be imported")
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
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")
