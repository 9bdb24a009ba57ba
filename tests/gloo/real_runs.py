"""Runs of the command line with real ranks, and what they leave behind: results, logs, processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import clean_environment

SCALESCOPE = (sys.executable, "-m", "scalescope")
_MARK = "SCALESCOPE_TEST_MARK"


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """How a command ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str
    ended_at: float
    folder: Path

    @property
    def results(self) -> list[dict[str, Any]]:
        """The lines of trials.jsonl."""
        return read_results(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """results.json."""
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return found

    def only(self, **settings: Any) -> dict[str, Any]:
        """The one result with these settings."""
        (found,) = (one for one in self.results if settings.items() <= one["settings"].items())
        return found

    def log(self, result: dict[str, Any], rank: int) -> str:
        name = f"{result['trial_id']}-{result['launch']}-{rank}.log"
        return (self.folder / "logs" / name).read_text()


class StartedRun:
    """A command that runs; everything it starts carries its mark in the environment."""

    def __init__(
        self, command: tuple[str, ...], directory: Path, folder: Path, extra: dict[str, str]
    ) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._out = directory / f"{self._mark}.out"
        self._err = directory / f"{self._mark}.err"
        # Files, not pipes: a process left behind would keep a pipe open and hold the test.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=clean_environment(**extra, **{_MARK: self._mark}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    def finish(self, timeout: float = 120) -> FinishedRun:
        """Wait for the end of the command itself."""
        self._process.wait(timeout)
        return FinishedRun(
            returncode=self._process.returncode,
            stdout=self.stdout,
            stderr=self._err.read_text(),
            ended_at=time.time(),
            folder=self.folder,
        )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
        """Wait for something that happens while the command runs."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self._process.poll() is None, f"ended before {what}: {self._err.read_text()}"
            assert time.monotonic() < deadline, f"no {what} within {timeout} s"
            time.sleep(0.02)

    def wait_for_ranks(self, world_size: int = 2) -> None:
        """Wait until ranks have been placed, which is when they begin to train."""
        self.wait_until(lambda: f"[Rank {world_size - 1}]" in self.stdout, "rank in training")

    def processes(self) -> list[int]:
        """The command and what it started, as far as it lives; zombies have no environment any more."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return f"{_MARK}={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def leftovers(self, within_s: float = 1.0) -> list[int]:
        """What is still there after `within_s`; returns as soon as nothing is."""
        deadline = time.monotonic() + within_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def clean_up(self) -> None:
        """End whatever a failed test left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The lines of trials.jsonl, none where the file is not there yet."""
    path = folder / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
