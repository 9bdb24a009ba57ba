"""Hands a worker of scalescope over to the torch server; any other process goes on."""

import os
import sys

_MODULES = (
    "scalescope.worker.process.zygote",
    "scalescope.worker.process.main",
    "scalescope.worker.process.attached",
    "tests.gloo.many_cases",
)


def _worker() -> "list[str]":
    """The module that this process was started for and its arguments; empty where it is not a worker."""
    words = [word for word in sys.orig_argv[1:] if word != "-P"]
    return words[1:] if words[:1] == ["-m"] and words[1:2] and words[1] in _MODULES else []


def _hand_over(folder: str, words: "list[str]") -> None:
    import json
    import signal
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.path.join(folder, "socket"))
    ignored = [number for number in (1, 2, 3, 10, 12, 13, 15) if signal.getsignal(number) is signal.SIG_IGN]
    request = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ), "ignored": ignored}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(connection.recv(64))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # or whoever reads would wait for this process too
        os.dup2(null, standard)
    code = int(connection.recv(64) or -9)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if (_words := _worker()) and (_folder := os.environ.get("SCALESCOPE_TEST_TORCH_SERVER")):
    _hand_over(_folder, _words)
