"""Acting after a module was imported."""

import importlib
import sys
from pathlib import Path

import pytest

from scalescope.worker.attach.imports import after_import, apart_from_script, forget_imports


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


def test_modules_of_a_script_are_not_ours_and_ours_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("colorsys", "only_of_script"):
        (tmp_path / f"{name}.py").write_text("is_of_script = True\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "plistlib", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = [*sys.path]
    with apart_from_script():
        ours = importlib.import_module("colorsys")
        importlib.import_module("plistlib")
    assert sys.path == before
    assert hasattr(ours, "rgb_to_hls")
    assert "plistlib" in sys.modules  # the script has no other
    assert importlib.import_module("colorsys").is_of_script
    assert importlib.import_module("only_of_script").is_of_script
    for name in ("colorsys", "only_of_script"):
        del sys.modules[name]
