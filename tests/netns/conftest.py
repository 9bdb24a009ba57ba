"""Runs on shaped links start as runs with real ranks do, and one after the other."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gloo.conftest import start as start
from tests.gloo.real_runs import RunsHere


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Numbers of namespaces are reused: those of a test running in parallel would look like leftovers."""
    lock = os.open(Path(tempfile.gettempdir()) / "scalescope-namespaces.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@pytest.fixture(scope="session")
def run_first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsHere]:
    """Commands in this process whose ranks go before all others.

    Other tests may run in parallel, but the link limits the rate only if ranks do not wait for a core.
    """
    runs = RunsHere(tmp_path_factory.mktemp("runs-first"), priority=-20)
    yield runs
    runs.end()
