"""Runs of the command line with real ranks, and what they leave behind: results, logs, processes."""

import contextlib
import io
import itertools
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
from unittest import mock

import pytest

from scalescope.cli import app
from scalescope.launch.local import launcher as local
from scalescope.launch.local.processes import RankProcess, Zygote
from scalescope.launch.telemetry.load import LoadMeter
from scalescope.results.ranks import RankJob
from tests import torch_server
from tests.conftest import clean_environment
from tests.speed import patience
from tests.torch_server.server import MARK

SCALESCOPE = (sys.executable, "-m", "scalescope")


def reset_signal_handlers() -> None:
    """Tests started in the background or under nohup would pass on ignored signals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


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
        summary: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return summary

    def only(self, **settings: Any) -> dict[str, Any]:
        """The one result with these settings."""
        (match,) = (result for result in self.results if settings.items() <= result["settings"].items())
        return match

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
                env=clean_environment(**extra, **{MARK: self._mark}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=reset_signal_handlers,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    def finish(self, within_s: float = 120) -> FinishedRun:
        """Wait for the end of the command itself; the seconds are those of an idle machine."""
        self._process.wait(patience(within_s))
        return FinishedRun(
            returncode=self._process.returncode,
            stdout=self.stdout,
            stderr=self._err.read_text(),
            ended_at=time.time(),
            folder=self.folder,
        )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_until(self, condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
        """Wait for something that happens while it runs; the seconds are those of an idle machine."""
        deadline = time.monotonic() + patience(within_s)
        while not condition():
            assert self._process.poll() is None, f"ended before {what}: {self._err.read_text()}"
            assert time.monotonic() < deadline, f"no {what} within {patience(within_s):.0f} s"
            time.sleep(0.05)

    def wait_for_ranks(self, world_size: int = 2) -> None:
        """Wait until ranks have been placed, which is when they begin to train."""
        self.wait_until(lambda: f"[Rank {world_size - 1}]" in self.stdout, "rank in training")

    def processes(self) -> list[int]:
        """The command and what it started, as far as it lives."""
        return _marked(self._mark)

    def leftovers(self, within_s: float = 10.0) -> list[int]:
        """What is still there after a while; returns as soon as nothing is."""
        return _left_after(within_s, self.processes)

    def clean_up(self) -> None:
        """End whatever a failed test left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class _LastingZygote(Zygote):
    """Torch, imported once for many commands: the end of a command does not end it."""

    def __init__(self) -> None:
        super().__init__()
        self.extra: dict[str, str] = {}

    def start(self, job: RankJob, environment: dict[str, str], log: Path) -> RankProcess:
        return super().start(job, {**self.extra, **environment}, log)

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


class RunsHere:
    """Commands inside this process, one after the other, with real ranks forked from one zygote.

    For what a command measures, says and stores; how its own processes start and end is what
    `StartedRun` shows. Ranks look for files in `directory`, which all commands share.
    """

    def __init__(self, directory: Path, priority: int = 0) -> None:
        self.directory = directory
        # Tests run side by side: each would be other load to the others, and launches would be repeated.
        self._meter = LoadMeter(proc=directory / "no proc")
        self._mark = uuid.uuid4().hex
        self._numbers = itertools.count()
        with contextlib.chdir(directory), torch_server.used(), self._environment({}):
            self._zygote = _LastingZygote()
        self._kept = self._processes()
        for pid in self._kept if priority else ():
            os.setpriority(os.PRIO_PROCESS, pid, priority)  # ranks inherit it

    def __call__(self, *arguments: str, folder: str | None = None, **extra: str) -> FinishedRun:
        """Run a command that writes to `folder`, by default a new one; keywords are environment variables."""
        folder = f"run{next(self._numbers)}" if folder is None else folder
        return self._run([*arguments, f"--output-dir={folder}"], folder, extra)

    def reading(self, *arguments: str) -> FinishedRun:
        """Run a command that has no folder of its own."""
        return self._run([*arguments], "", {})

    def _run(self, arguments: list[str], folder: str, extra: dict[str, str]) -> FinishedRun:
        self._zygote.extra = extra
        with (
            contextlib.chdir(self.directory),
            self._environment(extra),
            mock.patch.object(local, "Zygote", lambda threads, limit_s: self._zygote),
            mock.patch.object(local, "LoadMeter", lambda: self._meter),
            contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out,
            contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as err,
            pytest.raises(SystemExit) as leaving,
        ):
            app.main(arguments)
        assert isinstance(leaving.value.code, int)
        return FinishedRun(
            returncode=leaving.value.code,
            stdout=_text_of(out),
            stderr=_text_of(err),
            ended_at=time.time(),
            folder=self.directory / folder,
        )

    def leftovers(self, within_s: float = 10.0) -> list[int]:
        """Ranks, and what they started, that are still there after a while."""
        return _left_after(within_s, self._processes_of_ranks)

    def end(self) -> None:
        self._zygote.end()
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _environment(self, extra: dict[str, str]) -> "contextlib.AbstractContextManager[Any]":
        return mock.patch.dict(os.environ, clean_environment(**extra, **{MARK: self._mark}), clear=True)

    def _processes(self) -> list[int]:
        return _marked(self._mark)

    def _processes_of_ranks(self) -> list[int]:
        return [pid for pid in self._processes() if pid not in self._kept]


def _text_of(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _marked(mark: str) -> list[int]:
    """The processes that carry a mark; zombies have no environment any more."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _carries(pid, mark)]


def _carries(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _left_after(within_s: float, processes: Callable[[], list[int]]) -> list[int]:
    deadline = time.monotonic() + patience(within_s)
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The lines of trials.jsonl, none where the file is not there yet."""
    path = folder / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
