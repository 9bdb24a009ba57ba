"""The processes of a training command: started without a shell, and ended wherever they have moved to."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import scalescope
from scalescope.errors import BadInput
from scalescope.launch.guard import END, start_guarded
from scalescope.launch.local.processes import signal_group
from scalescope.launch.private_directory import own_directories
from scalescope.launch.telemetry.load import PROC, process_tree
from scalescope.results.ranks import JOB_VARIABLE

PACKAGE = Path(scalescope.__file__).parent
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_GUARD_LIMIT_S = 1.0
_KILL_LIMIT_S = 3.0  # a process inside the kernel can outlast SIGKILL; it must not hold us too


class CommandProcess:
    """A running command; it leads a session, but what it starts may lead others."""

    def __init__(self, process: "subprocess.Popen[bytes]", job_file: str, *, is_guarded: bool) -> None:
        self._process = process
        self._is_guarded = is_guarded
        self._mark = f"{JOB_VARIABLE}={job_file}".encode()

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        return self._process.poll()

    def has(self, pid: int) -> bool:
        """Whether a process belongs to this launch, by its environment."""
        try:
            return self._mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or it is another user's
            return False

    def members(self) -> set[int]:
        """The processes of this launch: those below the command, and those with its environment."""
        below = set() if self.exit_code is not None else set(process_tree(PROC, self._process.pid))
        return below | {pid for pid in _all_processes() if self.has(pid)}

    @contextlib.contextmanager
    def passing_signals_on(self) -> Iterator[list[int]]:
        """Pass signals on to the command instead of obeying them; yields those that were received.

        A terminal sends Ctrl-C to all processes of a job, others send a signal to one process.
        """
        received: list[int] = []

        def pass_on(number: int, frame: FrameType | None) -> None:
            received.append(number)
            if number == signal.SIGINT:
                signal_group(self._process.pid, number)
            elif self.exit_code is None:
                self._process.send_signal(number)

        before = {int(number): signal.getsignal(number) for number in _PASSED_ON}
        handled = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
        try:
            with contextlib.suppress(ValueError):  # only the main thread receives signals
                for number in handled:
                    signal.signal(number, pass_on)
            yield received
        finally:
            with contextlib.suppress(ValueError):
                for number, handler in handled.items():
                    signal.signal(number, handler)

    def end(self, grace_s: float = 1.0) -> None:
        """End everything of this launch: ask first, insist later."""
        self._signal(signal.SIGTERM)
        _wait(self._is_alive, grace_s)
        if self._is_guarded and self.exit_code is None:  # the guard knows also those without our environment
            os.kill(self._process.pid, END)
            _wait(lambda: self.exit_code is None, _GUARD_LIMIT_S)
        deadline = time.monotonic() + _KILL_LIMIT_S
        while self._is_alive() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            _wait(self._is_alive, 0.1)

    def _is_alive(self) -> bool:
        return self.exit_code is None or bool(self.members())

    def _signal(self, number: int) -> None:
        members = self.members()
        signal_group(self._process.pid, number)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def start_command(
    words: Sequence[str], environment: Mapping[str, str], log: Path, job_file: Path, *, outlives_us: bool
) -> CommandProcess:
    """Start the command in the working folder; it ends with us unless it may outlive us.

    Such a one writes to our standard error: a log of ours on a full disk would end its training.
    """
    try:
        if outlives_us:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": 2}
            process = subprocess.Popen(words, env=dict(environment), start_new_session=True, **streams)
        else:
            with log.open("ab") as output:
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
                guarded = start_guarded(words, removes=own_directories(), env=dict(environment), **streams)
                process = guarded.guard
    except OSError as error:
        raise BadInput(f"{words[0]}: could not be started: {error.strerror}") from None
    return CommandProcess(process, str(job_file), is_guarded=not outlives_us)


def check_program(program: str, environment: Mapping[str, str]) -> None:
    """Refuse a program that is not there, or that cannot be run."""
    if shutil.which(program, path=environment.get("PATH")) is not None:
        return
    if Path(program).is_file():
        raise BadInput(f"{program}: is not executable; start it with the program that runs it, e.g. python")
    raise BadInput(f"{program}: command not found; check its name and that its environment is active")


def _all_processes() -> list[int]:
    try:
        return [int(process.name) for process in PROC.iterdir() if process.name.isdecimal()]
    except OSError:  # a system without /proc: only the command's own group is known
        return []


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while condition() and time.monotonic() < deadline:
        time.sleep(0.05)
