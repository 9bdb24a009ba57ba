"""How slow this machine is, and how long tests wait.

A limit that is part of what a test says, such as a flag's, is a multiple of the machine's slowness. It is
measured once for a test run, before anything else; the processes that share the tests inherit it. A test that
only waits for what must come has patience: how long that takes says nothing, since all tests share the cores.
"""

import os
import statistics
import subprocess
import sys
import time

_VARIABLE = "SCALESCOPE_TEST_SLOWNESS"
# Starting interpreters and importing is what most limits wait for. The modules are part of Python.
_COMMAND = (
    sys.executable,
    "-I",
    "-c",
    "import asyncio, email.message, http.client, unittest.mock, xml.dom.minidom",
)
_REPEATS = 3
_WAITING = 5  # times what an idle machine would need: with other tests a command gets a fifth of a core
_REFERENCE_S = 0.2  # on two cores of a server of 2023 with nothing else to do


def measure_slowness() -> None:
    """Time what is representative, unless the environment has the answer already."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = str(max(1.0, statistics.median(_times_s()) / _REFERENCE_S))


def slowness() -> float:
    """1 on a fast and idle machine, 3 where everything takes three times as long."""
    return float(os.environ[_VARIABLE])


def limit(seconds: float) -> float:
    """A limit that is `seconds` on a fast machine."""
    return seconds * slowness()


def patience(seconds: float = 60) -> float:
    """How long to wait for what takes less than `seconds` where nothing else runs, before it is given up."""
    return _WAITING * limit(seconds)


def duration(seconds: float) -> str:
    """The same as a flag's value."""
    return f"{limit(seconds):.1f}s"


def _times_s() -> list[float]:
    times_s = []
    for _ in range(_REPEATS):
        began = time.monotonic()
        subprocess.run(_COMMAND, check=True, stdin=subprocess.DEVNULL)
        times_s.append(time.monotonic() - began)
    return times_s
