"""The command line as a whole: groups of flags, one line and an exit code for what is wrong.

Command lines that must be refused are in tests/bad_input/cases/flags.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.cli import app
from scalescope.errors import (
    BadInput,
    CannotRun,
    Interrupted,
    ScalescopeError,
    StorageError,
)
from tests.speed import patience

from .conftest import Run


def test_the_help_of_a_measuring_verb_is_grouped_by_card(run: Run) -> None:
    lines = run("train", "--help-all").out.splitlines()
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings.index("Training") < headings.index("Placement") < headings.index("Run")
    assert {"Placement", "Workload mlp", "Strategy ddp", "Lever precision", "Run"} <= set(headings)


def test_nothing_typed_shows_the_help_as_it_is_meant_to_be_read(run: Run) -> None:
    ended = run()
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("Usage: scalescope ")
    assert "Commands:" in lines


def test_completion_scripts_are_printed(run: Run) -> None:
    for shell in ("zsh", "fish"):
        ended = run("completion", shell)
        assert ended.code == 0
        assert "_SCALESCOPE_COMPLETE" in ended.out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ScalescopeError("x"), 1, "scalescope: x\n"),
        (BadInput("x"), 2, "scalescope: x\n"),
        (CannotRun("x"), 3, "scalescope: x\n"),
        (StorageError("x"), 7, "scalescope: x\n"),
        (Interrupted(1), 129, "scalescope: stopped by SIGHUP; nothing was measured yet\n"),
        (Interrupted(15), 143, "scalescope: stopped by SIGTERM; nothing was measured yet\n"),
        (KeyboardInterrupt(), 130, "scalescope: stopped by SIGINT\n"),
    ],
    ids=repr,
)
def test_every_error_has_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(context: object) -> None:
        raise error

    monkeypatch.setattr(app.app, "invoke", fail)
    ended = run("list")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.lstrip() == message  # a terminal's ^C is given a line of its own first


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app.app, "invoke", fail)
    with pytest.raises(ZeroDivisionError):
        app.main(["list"])


@pytest.mark.parametrize(
    ("command", "code", "unwanted"),
    [
        ("train --help", 0, {"torch", "pydantic", "rich", "numpy", "yaml"}),
        ("train none.yaml", 2, {"torch", "numpy"}),
    ],
)
def test_what_measures_nothing_loads_nothing_heavy(
    command: str, code: int, unwanted: set[str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "scalescope", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert ended.returncode == code
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"scalescope", "click"} <= loaded
    assert not unwanted & loaded
