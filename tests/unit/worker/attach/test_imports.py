"""Acting after a module was imported."""

import importlib
import sys
from pathlib import Path

import pytest

from scalescope.worker.attach.imports import after_import, forget_imports


def test_the_action_comes_after_the_whole_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text("import json\nvalue = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen_values: list[int] = []
    after_import("late_module", lambda: seen_values.append(sys.modules["late_module"].value))
    try:
        assert seen_values == []
        module = importlib.import_module("late_module")
        assert seen_values == [1]
        assert module.__spec__ is not None
        importlib.reload(module)
        assert seen_values == [1]
    finally:
        forget_imports()
        sys.modules.pop("late_module", None)


def test_a_module_that_is_there_is_acted_on_at_once() -> None:
    acted: list[int] = []
    after_import("json", lambda: acted.append(1))
    assert acted == [1]


def test_a_module_that_does_not_exist_fails_as_usual() -> None:
    after_import("no_such_module_at_all", lambda: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_at_all")
    finally:
        forget_imports()
