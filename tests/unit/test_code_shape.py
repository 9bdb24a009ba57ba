"""The shape of the source: limits on names, settings read by key, parsed text, folders and functions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_shape", ROOT / "benchmarks" / "code_shape.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


code_shape = _script()

EVERYTHING_WRONG = """
class Report: ...
class Other:
    class Report: ...

def load(a, b, c, d, e, f, g, h):
    found = a.settings["strategy"], b.settings.get("link"), c.settings[d]
    if "The budget of" in e:
        return e.removeprefix("stopped: "), one(found)
"""


@pytest.fixture(scope="module")
def source() -> Any:
    return code_shape.shape_of(ROOT / "src" / "scalescope")


@pytest.fixture
def wrong(tmp_path: Path) -> Any:
    (tmp_path / "module.py").write_text(EVERYTHING_WRONG)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "trial.py").write_text("def read(trial):\n    return trial.settings['link']\n")
    return code_shape.shape_of(tmp_path)


@pytest.mark.parametrize(("figure", "limit"), code_shape.LIMITS.items())
def test_the_source_keeps_to_its_limits(source: Any, figure: str, limit: int) -> None:
    places = {
        "filler identifiers": source.fillers,
        "settings read by key": (*source.subscripts, *source.gets),
        "unexplained parsing of text": source.unexplained,
        "files in the largest folder": source.folders.most_common(3),
        "functions with more than 7 parameters": source.many_parameters,
        "class names used twice": source.twice,
    }
    assert source.limited[figure] <= limit, "\n".join(map(str, places[figure]))


def test_no_reason_outlives_what_it_explains(source: Any) -> None:
    assert code_shape.unused_reasons(source) == ()


def test_every_kind_of_place_is_counted(wrong: Any) -> None:
    assert wrong.limited == {
        "filler identifiers": 3,
        "settings read by key": 2,
        "unexplained parsing of text": 2,
        "files in the largest folder": 1,
        "functions with more than 7 parameters": 1,
        "class names used twice": 1,
    }
    assert (len(wrong.subscripts), len(wrong.gets), len(wrong.generic)) == (1, 1, 1)
    assert wrong.longest[0] == 4


def test_methods_do_not_count_themselves_as_a_parameter(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("class A:\n    def f(self, a, b, c, d, e, f, *, g): ...\n")
    assert code_shape.shape_of(tmp_path).many_parameters == ()


def test_a_discovered_folder_may_grow(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("def main(): ...\n")
    (tmp_path / "rules").mkdir()
    for number in range(20):
        (tmp_path / "rules" / f"rule_{number}.py").write_text("")
    shape = code_shape.shape_of(tmp_path)
    assert (max(shape.folders.values()), shape.discovered["rules"]) == (1, 20)
