"""The comparison of printed lines with what `train` measures: what it asks for, and its summary."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scalescope.errors import BadInput

ROOT = Path(__file__).parents[2]
WORKLOAD = f"{ROOT / 'benchmarks' / 'tuning' / 'own_jobs.py'}:transformer"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune_lines", ROOT / "benchmarks" / "tune_lines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tune_lines = _script()


def test_levers_start_from_what_own_workloads_have() -> None:
    words = ["static_graph=true", "num_workers=4", "env=A=1", "env=B=x=y"]
    assert tune_lines.changes_from(words, WORKLOAD, "cuda") == {
        "static_graph": (False, True),
        "num_workers": (None, 4),
        "env": (None, {"A": "1", "B": "x=y"}),
    }


@pytest.mark.parametrize("word", ["precision", "nothing=1", "precision=fp7"])
def test_what_is_no_lever_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match=r"^--lever"):
        tune_lines.changes_from([word], WORKLOAD, "cpu")


def test_a_lever_without_lines_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", WORKLOAD, "--device", "cuda", "--lever", "pin_cores=yes"]
    assert tune_lines.main(arguments) == 2
    assert capsys.readouterr().err.startswith("tune_lines.py: --lever pin_cores: it has no line of PyTorch")


def test_gains_are_paired_by_round() -> None:
    """The second round is twice as fast throughout, which changes no gain."""
    once = {
        ("script", "plain"): 10.0,
        ("script", "levers"): 21.0,
        ("train", "plain"): 9.0,
        ("train", "levers"): 18.0,
    }
    speeds = {kind: [math.log(speed), math.log(2 * speed)] for kind, speed in once.items()}
    lines, levers, ratio = tune_lines.summary(speeds)
    assert "2.100× [2.100, 2.100]" in lines and "2.000× [2.000, 2.000]" in levers
    assert ratio == "ratio: 1.050× [1.050, 1.050], within 10%"
    speeds["script", "levers"] = [speed + 1.0 for speed in speeds["script", "levers"]]
    assert tune_lines.summary(speeds)[-1].endswith(", not within 10%")


def test_an_interval_that_is_too_wide_decides_nothing() -> None:
    kinds = [(by, with_what) for by in ("script", "train") for with_what in ("plain", "levers")]
    speeds = {kind: [0.0, 0.0] for kind in kinds}
    assert tune_lines.summary(speeds)[-1].endswith(", within 10%")
    speeds["train", "levers"] = [0.3, -0.3]
    assert "not known to be within 10%" in tune_lines.summary(speeds)[-1]
