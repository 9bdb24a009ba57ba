"""Runs on shaped links start as runs with real ranks do, and one after the other."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gloo.conftest import start as start


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The system gives a namespace's number to the next one: a test beside would look like what we left."""
    lock = os.open(Path(tempfile.gettempdir()) / "scalescope-namespaces.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
