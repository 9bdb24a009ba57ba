"""A module of the working folder must not replace an installed one, in any interpreter that is started."""

import ast
import os
import sys
from pathlib import Path

import pytest

import scalescope
from scalescope.interpreter import forget_working_folder, python_module

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
        if any(
            isinstance(node, ast.List | ast.Tuple)
            and any(isinstance(part, ast.Constant) and part.value == "-m" for part in node.elts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert started == ["interpreter.py"]
