"""Starts commands with real ranks, and ends what a failing test leaves."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.gloo.real_runs import SCALESCOPE, RunsHere, StartedRun


class Start(Protocol):
    """Starts a command that writes to `folder`; keywords are environment variables."""

    def __call__(
        self, *arguments: str, folder: str = "run", command: tuple[str, ...] = SCALESCOPE, **extra: str
    ) -> StartedRun: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `scalescope` in an empty directory without waiting for it."""
    started: list[StartedRun] = []

    def begin(
        *arguments: str, folder: str = "run", command: tuple[str, ...] = SCALESCOPE, **extra: str
    ) -> StartedRun:
        whole = [*command, *arguments]
        whole.insert(whole.index("--") if "--" in whole else len(whole), f"--output-dir={folder}")
        started.append(StartedRun(tuple(whole), tmp_path, tmp_path / folder, extra))
        return started[-1]

    yield begin
    for run in started:
        run.clean_up()


def start_as_ranks(start: Start, *arguments: str, **extra: str) -> list[StartedRun]:
    """Two commands with the variables that torchrun would give them; the first one writes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        start(
            *arguments,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            **meeting,
            **extra,
        )
        for rank in (0, 1)
    ]


@pytest.fixture(scope="session")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsHere]:
    """Run `scalescope` in this process; torch is imported once, by the zygote of all these runs."""
    runs = RunsHere(tmp_path_factory.mktemp("runs-here"))
    yield runs
    runs.end()
