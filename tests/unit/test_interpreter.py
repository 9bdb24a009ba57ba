"""Interpreters that are started, and what a script's own job loads."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import scalescope
from scalescope.interpreter import forget_working_folder, python_module
from scalescope.job import Job

_SOURCES = Path(scalescope.__file__).parent


def test_a_module_is_run_without_the_working_folder_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert python_module("scalescope", "list") == [sys.executable, "-P", "-m", "scalescope", "list"]


def test_scalescope_is_found_where_it_is_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(_SOURCES.parent)
    assert python_module("scalescope") == [sys.executable, "-m", "scalescope"]


def test_the_working_folder_is_forgotten_where_it_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    forget_working_folder()
    forget_working_folder()
    assert sys.path == ["/elsewhere"]


def test_a_working_folder_that_was_removed_is_on_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: os.stat(tmp_path / "removed"))
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    forget_working_folder()
    assert sys.path == ["/elsewhere"]
    assert python_module("scalescope") == [sys.executable, "-P", "-m", "scalescope"]


def test_no_module_is_started_in_another_way() -> None:
    """`python -m` is written in one place."""
    started = [
        path.relative_to(_SOURCES).as_posix()
        for path in _SOURCES.rglob("*.py")
        if '"-m"' in path.read_text(encoding="utf-8")
        and any(
            isinstance(node, ast.List | ast.Tuple)
            and any(isinstance(part, ast.Constant) and part.value == "-m" for part in node.elts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert started == ["interpreter.py"]


_LOADED = """
import sys
import scalescope
scalescope.Job(model=None, data=[])
names = {"torch", "pydantic", "scalescope.studies", "scalescope.results"}
sys.exit(", ".join(names & set(sys.modules)) or 0)
"""


def test_a_job_loads_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_has_the_job() -> None:
    assert scalescope.Job is Job


def test_parts_of_a_job_have_names() -> None:
    with pytest.raises(TypeError):
        Job(None, [])  # type: ignore[misc, call-arg]
    job = Job(model=1, data=2)
    assert (job.loss, job.optimizer, job.step) == (None, None, None)
