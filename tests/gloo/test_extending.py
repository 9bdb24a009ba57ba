"""The worked examples of CONTRIBUTING.md train on real ranks."""

import os
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.extending.worked_examples import example_folders
from tests.gloo.conftest import Start

pytestmark = pytest.mark.gloo

# Python imports a module of this name before anything else, in the command and in its ranks.
_SITE = """
import importlib

for package, folder in {folders!r}.items():
    importlib.import_module(package).__path__.append(folder)
"""


@pytest.fixture
def python_path(tmp_path: Path) -> str:
    """Where Python finds the examples as parts of scalescope."""
    folders = {package: str(folder) for package, folder in example_folders().items()}
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_SITE.format(folders=folders), encoding="utf-8")
    return os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH", ""))))


def test_the_example_strategy_trains_as_ddp_does_and_clipping_changes_it(
    start: Start, python_path: str
) -> None:
    arguments = ("train", *TINY, "--world-size=2", "--strategy=ddp,flat_ddp", "--lr=0.5")
    started = start(*arguments, "--clip-norm=none,0.001", "--accumulation-steps=2", PYTHONPATH=python_path)
    run = started.finish()
    assert run.returncode == 0, run.stderr
    losses = {
        (strategy, clip_norm): run.only(strategy=strategy, clip_norm=clip_norm)["ranks"][0]["samples"]["loss"]
        for strategy in ("ddp", "flat_ddp")
        for clip_norm in (None, 0.001)
    }
    for clip_norm in (None, 0.001):
        assert losses["flat_ddp", clip_norm] == pytest.approx(losses["ddp", clip_norm], rel=1e-5)
    assert losses["flat_ddp", None][-1] != pytest.approx(losses["flat_ddp", 0.001][-1], rel=1e-3)


def test_the_example_verb_measures_real_ranks(start: Start, python_path: str) -> None:
    arguments = ("drift", *TINY, "--world-size=2", "--strategy=flat_ddp", "--repeats=2")
    run = start(*arguments, PYTHONPATH=python_path).finish()
    assert run.returncode == 0, run.stderr
    assert "step time by launch" in run.stdout
    assert [result["status"] for result in run.results] == ["ok", "ok"]
