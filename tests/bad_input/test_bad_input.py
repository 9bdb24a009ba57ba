"""Every bad input is refused in one line with its exit code; nothing is launched, nothing is left behind."""

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scalescope.cli import app
from scalescope.experiment.machine import Machine
from scalescope.launch.local import launcher as local
from scalescope.launch.torchrun import launcher as attached
from scalescope.studies import running
from tests.bad_input.case import Case, Unreadable, write
from tests.bad_input.cases import (
    experiment_files,
    flags,
    hostile_names,
    jobs,
    machines,
    models,
    stored_runs,
    usable,
)
from tests.builders.requests import with_gpus
from tests.conftest import Cli, clean_environment
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

CASES = (
    *experiment_files.CASES,
    *flags.CASES,
    *hostile_names.CASES,
    *jobs.CASES,
    *machines.CASES,
    *models.CASES,
    *stored_runs.CASES,
)
PROGRAM = "scalescope: "


class RefusingLauncher(FakeLauncher):
    """Knows the machine; starting a rank on it is what no bad input may do."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(CostModel(), machine)

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return self._machine

    def launch(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("a launch was started")


class RefusingAttachedLauncher:
    """Attaching to ranks is what no bad input may do either."""

    def __init__(self, context: object) -> None:
        raise AssertionError("ranks were attached to")


class Streams:
    """Standard output and standard error as a pipe would get them."""

    def __init__(self) -> None:
        self.out, self.err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))

    def texts(self) -> tuple[str, str]:
        """What was written to each."""
        out, err = (
            (stream.flush(), stream.buffer.getvalue().decode("utf-8"))[1] for stream in (self.out, self.err)
        )
        return out, err


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and what it left."""

    code: object
    out: str
    err: str
    new_paths: tuple[str, ...]


Run = Callable[[Case], Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a case in an empty folder, in this process, where ranks cannot be started."""
    monkeypatch.chdir(tmp_path)
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)

    def call(case: Case) -> Ended:
        if os.geteuid() == 0 and Unreadable in map(type, case.files.values()):
            pytest.skip("root may read everything")
        machine = with_gpus(case.gpus) if case.gpus else TWO_CORES
        for module in (local, running):  # of `compare` and `check`, and of everything else
            monkeypatch.setattr(module, "LocalLauncher", lambda: RefusingLauncher(machine))
        for module in (attached, running):
            monkeypatch.setattr(module, "AttachedLauncher", RefusingAttachedLauncher)
        for name, value in case.environment.items():
            monkeypatch.setenv(name, value)
        write(tmp_path, case.files)
        before = _paths(tmp_path)
        streams = Streams()
        with (
            contextlib.redirect_stdout(streams.out),
            contextlib.redirect_stderr(streams.err),
            pytest.raises(SystemExit) as leaving,
        ):
            app.main(list(case.command))
        out, err = streams.texts()
        return Ended(code=leaving.value.code, out=out, err=err, new_paths=tuple(_paths(tmp_path) - before))

    return call


def _paths(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _names(cases: Sequence[Case]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("case", CASES, ids=_names(CASES))
def test_bad_input_is_refused_in_one_line(case: Case, run: Run) -> None:
    ended = run(case)
    assert (ended.code, bool(ended.out)) == (case.code, case.shows), ended.err
    line = the_only_line(ended.err)
    for words in case.says:
        assert words in line
    assert case.leaves or not ended.new_paths


def the_only_line(err: str) -> str:
    """What is said in one line that any terminal can show."""
    assert err.startswith(PROGRAM) and err.endswith("\n"), err
    line = err.removeprefix(PROGRAM).removesuffix("\n")
    assert line.isprintable(), ascii(line)
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("case", usable.CASES, ids=_names(usable.CASES))
def test_what_can_be_used_is_used(case: Case, run: Run) -> None:
    ended = run(case)
    assert ended.code == case.code, ended.err
    text = " ".join((ended.out + ended.err).split())
    for words in case.says:
        assert words in text
    assert "Traceback" not in text
    assert case.leaves or not ended.new_paths


# Argument vectors, encodings and exit codes as the system sees them: a few through a real process.
_BY_PROCESS = ("file: not UTF-8", "run name: line break")


@pytest.mark.parametrize("name", _BY_PROCESS)
def test_a_real_process_says_the_same(name: str, tmp_path: Path, cli: Cli) -> None:
    (case,) = (case for case in CASES if case.name == name)
    write(tmp_path, case.files)
    ended = cli(*case.command)
    assert (ended.returncode, ended.stdout) == (case.code, "")
    line = the_only_line(ended.stderr)
    for words in case.says:
        assert words in line
