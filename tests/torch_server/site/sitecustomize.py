"""Hands a worker of scalescope over to the torch server, and keeps the command line from importing torch."""

import os
import sys

_MODULES = (
    "scalescope.worker.process.zygote",
    "scalescope.worker.process.main",
    "scalescope.worker.process.attached",
    "tests.gloo.many_cases",
)


def _started_module() -> "list[str]":
    """The module that this process was started for and its arguments; empty where it runs a file."""
    words = [word for word in sys.orig_argv[1:] if word != "-P"]
    return words[1:] if words[:1] == ["-m"] else []


class _NoTorch:
    """Fails the command line that imports torch: only workers may."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        assert name != "torch", "the command line imports torch"


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


_words = _started_module()
if _words[:1] == ["scalescope"]:
    sys.meta_path.insert(0, _NoTorch)  # type: ignore[arg-type]
elif _words and _words[0] in _MODULES:
    _hand_over(os.environ["SCALESCOPE_TEST_TORCH_SERVER"], _words)
