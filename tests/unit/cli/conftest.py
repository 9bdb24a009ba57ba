"""Shared by the tests of the command line: `main`, called in an empty folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.calling import called

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call `main` in an empty directory; returns code, out and err."""
    monkeypatch.chdir(tmp_path)
    return partial(called, capsys)
