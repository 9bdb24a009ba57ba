"""Guard: runs a program, and ends all that it started when it ends, or when we end.

`python -I -S guard.py PARENT PREFIXES SESSION REPORT COMMAND …` runs as a standalone file, so neither
site-packages nor hooks in the environment are loaded. On Linux it adopts processes that detached themselves.
When its parent is killed, it also removes the directories whose paths begin with one of the prefixes.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Asks a guard to end all now; other signals are for the command. Schedulers send SIGUSR1 to whole jobs.
END: int = getattr(signal, "SIGRTMIN", signal.SIGUSR1)
_FOR_THE_COMMAND = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_HELD = (*_FOR_THE_COMMAND, END, signal.SIGCHLD)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_S = 0.5  # how often a parent's death is looked for where no signal tells
_END_LIMIT_S = 5.0  # a process inside the kernel can outlast SIGKILL
START_LIMIT_S = 30.0  # for a guard, which starts in a twentieth of a second
_OWN = "own"


def start_guarded(
    command: Sequence[str],
    *,
    own_session: bool = False,
    removes: Sequence[str] = (),
    limit_s: float = START_LIMIT_S,
    **options: Any,
) -> "GuardedProcess":
    """Start a command below a guard; `options` are those of Popen, and the guard leads a session.

    With `own_session` the command leads another. If we are killed, directories that begin with one of
    `removes` go too. OSError where the guard cannot be started, or does not answer within the limit.
    """
    reading, writing = os.pipe()
    arguments = (str(os.getpid()), os.pathsep.join(removes), _OWN if own_session else "", str(writing))
    words = [sys.executable, "-I", "-S", __file__, *arguments, *command]
    try:
        guard = subprocess.Popen(words, pass_fds=(writing,), start_new_session=True, **options)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with os.fdopen(reading) as answer:
        if not select.select([answer], [], [], limit_s)[0]:
            guard.kill()
            guard.wait()
            raise TimeoutError(errno.ETIMEDOUT, f"no process was started within {limit_s:g} s")
        pid = answer.readline().strip()
    return GuardedProcess(guard, int(pid) if pid else 0)


class GuardedProcess:
    """A command below its guard, whose exit code is the command's."""

    def __init__(self, guard: "subprocess.Popen[bytes]", pid: int) -> None:
        self.guard = guard
        self.pid = pid  # of the command; 0 where it could not be started

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it or something it started runs."""
        return self.guard.poll()

    def end(self) -> None:
        """End the command and everything it started, wherever that is now."""
        with contextlib.suppress(ProcessLookupError):
            self.guard.send_signal(signal.SIGCONT)
            self.guard.send_signal(END)
        try:
            self.guard.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:  # what it started dies with it, unless it is detached
            self.guard.kill()
            self.guard.wait()


class _Guard:
    """The guard's side: a child that it watches, and all that comes below it."""

    def __init__(self, parent: int, command: list[str], *, own_session: bool) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
        _set_process_option(_PR_SET_PDEATHSIG, END)
        self._parent, guard = parent, os.getpid()
        self._status: int | None = None  # of the child, once it has ended
        if self.is_orphaned():
            os._exit(1)
        self.child = os.fork()
        if self.child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _become(command, guard, own_session=own_session)

    def is_orphaned(self) -> bool:
        return os.getppid() != self._parent

    def watch(self) -> None:
        """Wait until the child ends, the parent ends, or someone asks for the end."""
        self._reap()
        while self._status is None and not self.is_orphaned() and _next_signal() != END:
            self._reap()

    def end_descendants(self) -> None:
        """Kill what is below, again and again: orphans come up from where they were not seen."""
        deadline = time.monotonic() + _END_LIMIT_S
        while (left := self._descendants()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            self._reap()

    def exit(self) -> None:
        """End as the child did."""
        self._reap()
        code = os.waitstatus_to_exitcode(signal.SIGKILL if self._status is None else self._status)
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
            os.kill(os.getpid(), -code)
        os._exit(code)

    def _reap(self) -> None:
        """Collect what has ended, adopted processes too."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.child:
                    self._status = ended[1]

    def _descendants(self) -> list[int]:
        parents = _parents_of_processes()
        if not parents:  # a system without /proc: the child alone is known
            return [] if self._status is not None else [self.child]
        below = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        return sorted(below - {os.getpid()})


def main() -> None:
    parent, prefixes, session, report = sys.argv[1:5]
    guard = _Guard(int(parent), sys.argv[5:], own_session=session == _OWN)
    _answer(int(report), guard.child)
    guard.watch()
    guard.end_descendants()
    if guard.is_orphaned():
        _remove([prefix for prefix in prefixes.split(os.pathsep) if prefix])
    guard.exit()


def _set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(command: list[str], guard: int, *, own_session: bool) -> None:
    """Turn this forked child into the command, which dies with the guard."""
    try:
        _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # an interpreter ignores it, and that is inherited
        if own_session:
            os.setsid()
        if os.getppid() == guard:
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as problem:
        print(f"{command[0]}: could not be started: {problem.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _answer(descriptor: int, child: int) -> None:
    """Report the command's id, and let go of all that the command reads from and writes to."""
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{child}\n".encode())
    os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def _next_signal() -> int | None:
    """The next signal for the guard itself, or None after a while."""
    if sys.platform != "linux":
        time.sleep(_LOOK_S / 5)
        return END if END in signal.sigpending() else None
    received = signal.sigtimedwait((END, signal.SIGCHLD), _LOOK_S)
    return None if received is None else received.si_signo


def _parents_of_processes() -> dict[int, int]:
    """Process -> its parent, without those that have ended; empty where the system does not show them."""
    parents = {}
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):  # not a process, or it has ended
                pid, stat = int(process.name), (process / "stat").read_bytes()
                state, parent = stat.rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    parents[pid] = int(parent)
    return parents


def _remove(prefixes: list[str]) -> None:
    """Remove directories of ours that a killed parent left; what another rank holds, it removes itself."""
    for prefix in prefixes:
        directory = Path(prefix)
        for path in directory.parent.glob(f"{directory.name}*"):
            if not _is_held(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_held(path: Path) -> bool:
    """Whether a process keeps a lock on a directory; that of a killed one is free in a moment."""
    deadline = time.monotonic() + _LOOK_S
    with contextlib.suppress(OSError):
        held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            while True:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return False
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        return True
                time.sleep(0.02)
        finally:
            os.close(held)
    return False


if __name__ == "__main__":
    main()
