"""One cluster for all these tests, and several of its commands at once.

A test names the function that drives its commands: `@driven_by(function)` and the fixture `outcome`. All such
functions run side by side from the first test on, since most of their time is spent waiting in a queue. Each
has an outcome of its own: what it returned, or what it raised.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.real_runs import SCALESCOPE, StartedRun
from tests.slurm.cluster import one_host_cluster
from tests.speed import patience

_AT_ONCE = 3


class Commands:
    """Starts commands in a folder, for the cluster."""

    def __init__(self, cluster: dict[str, str], directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self._started: list[StartedRun] = []

    def start(
        self,
        verb: str,
        *arguments: str,
        folder: str = "run",
        command: tuple[str, ...] = SCALESCOPE,
        **extra: str,
    ) -> StartedRun:
        whole = (*command, verb, f"--output-dir={folder}", *arguments)
        run = StartedRun(whole, self.directory, self.directory / folder, {**self.cluster, **extra})
        self._started.append(run)
        return run

    def ask(self, *command: str) -> str:
        """What one of SLURM's own commands says."""
        environment = {**os.environ, **self.cluster}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(200))
        return done.stdout

    def clean_up(self) -> None:
        for run in self._started:
            run.clean_up()


Driver = Callable[[Commands], Any]


def driven_by(driver: Driver) -> pytest.MarkDecorator:
    """Mark a test that looks at the outcome of `driver`."""
    return pytest.mark.parametrize("outcome", [driver], indirect=True, ids=[driver.__name__.strip("_")])


class SideBySide:
    """Drivers that run at once, some at a time, in the order of their tests."""

    def __init__(self, drivers: Sequence[Driver], cluster: dict[str, str], directory: Path) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._commands = []
        self._futures = {}
        for driver in drivers:
            folder = directory / driver.__name__
            folder.mkdir()
            commands = Commands(cluster, folder)
            self._commands.append(commands)
            self._futures[driver] = self._pool.submit(driver, commands)

    def outcome_of(self, driver: Driver) -> Any:
        return self._futures[driver].result()

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for commands in self._commands:
            commands.clean_up()
        self._pool.shutdown()


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """The variables that lead commands to a SLURM of two nodes."""
    with one_host_cluster() as variables:
        yield variables


@pytest.fixture(scope="session")
def side_by_side(
    request: pytest.FixtureRequest, cluster: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    """What the tests of this run ask for, begun."""
    here = [item for item in request.session.items if item.path.parent == Path(__file__).parent]
    asked = [item.callspec.params.get("outcome") for item in here if hasattr(item, "callspec")]
    drivers = [driver for driver in dict.fromkeys(asked) if driver is not None]
    begun = SideBySide(drivers, cluster, tmp_path_factory.mktemp("slurm"))
    yield begun
    begun.end()


@pytest.fixture
def outcome(request: pytest.FixtureRequest, side_by_side: SideBySide) -> Any:
    """What the driver of this test returned."""
    return side_by_side.outcome_of(request.param)
