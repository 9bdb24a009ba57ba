"""Collects what tests of faults saw, and writes it as a page: pytest tests/faults --reliability FILE."""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.page import Observation, page
from tests.gloo.conftest import run_here, start

__all__ = ["run_here", "start"]  # fixtures of real runs

_SEEN, _ROWS = "seen", "rows"  # the latter is noted by tests/conftest.py
Seen = Callable[[str], None]

# Runs a command with mounts of its own. Root needs no namespace of users for that, and may not get one.
WITH_OWN_MOUNTS = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Seen:
    """Say in a few words what happened, for the page."""

    def note(text: str) -> None:
        record_property(_SEEN, text)

    return note


class _Page:
    """Writes the page when all tests have run, in whichever processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._observations: defaultdict[int, list[Observation]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not (report.when == "setup" and report.skipped):
            return
        properties = dict[str, object](report.user_properties)
        numbers = properties.get(_ROWS, ())
        text = "; ".join(str(value) for name, value in report.user_properties if name == _SEEN)
        for number in numbers if isinstance(numbers, list) else ():
            observation = Observation(report.outcome, text, report.duration)
            self._observations[number].append(observation)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(page(self._observations), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--reliability", None)
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Page(Path(path)))
