"""The torch server: `python -m tests.torch_server.server FOLDER OWNER` serves until OWNER ends."""

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
import uuid
from pathlib import Path

MARK = "SCALESCOPE_TEST_MARK"
_MOST = 1 << 20  # bytes of a request


def main() -> None:
    folder, owner = Path(sys.argv[1]), int(sys.argv[2])
    if MARK not in os.environ:  # so that /proc has room for the mark of every worker
        os.execve(sys.executable, sys.orig_argv, {**os.environ, MARK: uuid.uuid4().hex})
    from scalescope.worker.process import zygote

    zygote.preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "starting"))
    listener.listen(64)
    (folder / "starting").rename(folder / "socket")
    _serve(listener, os.pidfd_open(owner))


def _serve(listener: socket.socket, owner: int) -> None:
    """Fork a worker for every connection; end it when the connection ends, and report its end."""
    workers: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of its process
    while True:
        connections = {connection: process for process, (_, connection) in workers.items()}
        ready, _, _ = select.select([listener, owner, *workers, *connections], [], [])
        for source in ready:
            if source == owner:
                for pid, _ in workers.values():
                    _kill(pid)
                return
            if source is listener:
                _accept(listener, workers)
            elif isinstance(source, int):
                pid, connection = workers.pop(source)
                os.close(source)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                connection.close()
            elif connections[source] in workers and not source.recv(1):
                _kill(workers[connections[source]][0])


def _accept(listener: socket.socket, workers: dict[int, tuple[int, socket.socket]]) -> None:
    connection, _ = listener.accept()
    message, descriptors, _, _ = socket.recv_fds(connection, _MOST, 3)
    if not message:  # whoever asked is gone
        connection.close()
        return
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _become(json.loads(message), descriptors)
        os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    workers[os.pidfd_open(pid)] = (pid, connection)
    with contextlib.suppress(OSError):
        connection.send(str(pid).encode())


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Turn this forked process into a worker."""
    os.setsid()
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
    os.closerange(3, 1 << 16)
    words, environment = request["words"], request["env"]
    assert isinstance(words, list) and isinstance(environment, dict)
    for number in request["ignored"]:  # type: ignore[attr-defined]
        signal.signal(number, signal.SIG_IGN)
    if mark := environment.get(MARK):
        _show_mark(mark)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["cwd"]))
    sys.argv = list(words)
    if not words[0].startswith("tests."):
        sys.path.remove(str(Path(__file__).parents[2]))  # where this server was started
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        sys.stdout.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else 0)
    os._exit(0)


def _show_mark(mark: str) -> None:
    """Write the mark to where the system reads a process's environment from: what was there at its start."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(MARK.encode())
    assert len(mark) == len(os.environ[MARK])
    ctypes.memmove(place, mark.encode(), len(mark))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
