"""One process that has torch loaded, from which the zygotes and ranks of all tests are forked.

Importing torch takes seconds. A command line under test is a fresh process as always; the workers it starts
(`python -m scalescope.worker.process…`) find `site/sitecustomize.py` on their path, which hands their
arguments, environment, working folder and open files to the server. The server forks a process that becomes
the worker. The one that was started stays in its place: it passes on signals, ends as the worker ends, and
when it is killed, so is the worker.

Not for tests about the zygote's own process, about files or limits that only its own process sees, or about
variables that libraries read while they are loaded: those start their workers as users do.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from scalescope.launch.local.processes import can_fork
from tests.speed import patience

# The folder of the socket; the processes that share the tests inherit it.
VARIABLE = "SCALESCOPE_TEST_TORCH_SERVER"
_SITE = Path(__file__).parent / "site"
_OWNER = "SCALESCOPE_TEST_OWNER"
_started: list["subprocess.Popen[bytes]"] = []  # it outlives this process where several share the tests


def prepare() -> None:
    """Choose the server's folder, once for a test run; the server starts when it is first needed."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="torch-server-")
        os.environ[_OWNER] = str(os.getpid())


def remove() -> None:
    """Remove the server's folder, at the end of the run that chose it; the server ends when that run does."""
    for process in _started:
        process.returncode = 0  # nobody waits for it, and that is no mistake
    if os.environ.get(_OWNER) == str(os.getpid()):
        shutil.rmtree(os.environ.pop(VARIABLE), ignore_errors=True)
        del os.environ[_OWNER]


def variables() -> dict[str, str]:
    """The variables with which a command's workers come from the server, which is started if need be."""
    if not can_fork():
        return {}
    _start()
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, VARIABLE: os.environ[VARIABLE]}


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Inside, every process that is started has these variables."""
    with mock.patch.dict(os.environ, variables()):
        yield


def _start() -> None:
    folder = Path(os.environ[VARIABLE])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "socket").exists():
            return
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_server.server", str(folder), os.environ[_OWNER]],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        _started.append(process)
        deadline = time.monotonic() + patience()
        while not (folder / "socket").exists():
            assert process.poll() is None and time.monotonic() < deadline, "the torch server did not start"
            time.sleep(0.02)
