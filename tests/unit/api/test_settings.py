"""Keyword arguments become the entries that the same flags would give."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.api.settings import entries_of
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.studies.comm import CommStudy
from scalescope.studies.scaling.scale import ScaleStudy

_SCALE = ScaleStudy()


def _texts(**given: Any) -> dict[str, list[str]]:
    return {name: [value.text for value in values] for name, values in entries_of(_SCALE, given).items()}


def _experiment(**given: Any) -> Experiment:
    return build_experiment("scale", "train", {}, entries_of(_SCALE, given), {})


def _refusal(**given: Any) -> str:
    with pytest.raises(BadInput) as refused:
        _experiment(**given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_values_are_text_with_the_keyword_as_origin() -> None:
    (entry,) = entries_of(_SCALE, {"window": "3s"})["window"]
    assert (entry.text, entry.origin) == ("3s", "window=")


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([32, 256], ["32", "256"]),
        ((1, 2), ["1", "2"]),
        (range(1, 4), ["1", "2", "3"]),
        ("1,2", ["1", "2"]),
        (8, ["8"]),
        (None, ["none"]),
    ],
)
def test_lists_are_sweeps(value: Any, texts: list[str]) -> None:
    assert _texts(world_size=value) == {"world_size": texts}


def test_values_are_parsed_by_the_cards() -> None:
    experiment = _experiment(
        world_size=[1, 2],
        static_graph=[True, False],
        window="3s",
        budget=120,
        output_dir=Path("runs/x"),
        env={"NCCL_ALGO": ["Ring", "Tree"], "A": 1},
    )
    assert experiment.settings["world_size"] == (1, 2)
    assert experiment.settings["static_graph"] == (True, False)
    assert experiment.settings["env"] == (
        {"A": "1", "NCCL_ALGO": "Ring"},
        {"A": "1", "NCCL_ALGO": "Tree"},
    )
    assert experiment.measuring.budget == 120.0
    assert experiment.measuring.output_dir == "runs/x"
    assert _experiment(budget=None).measuring.budget is None


def test_other_names_of_flags_are_known() -> None:
    assert _texts(nproc_per_node=2) == {"world_size": ["2"]}
    assert _texts(amp=True) == {"precision": ["bf16"]}
    assert _texts(amp=False) == {}
    assert "another name for world_size" in _refusal(nproc_per_node=2, world_size=2)


def test_bad_values_are_refused_in_one_line_that_names_the_keyword() -> None:
    assert _refusal(batch_size=0) == "batch_size=: must be at least 1, got 0"
    assert _refusal(batch_size=2.5).startswith("batch_size=: expected a whole number")
    assert _refusal(batch_size=[]).startswith("batch_size=: expected a value or a list")
    assert _refusal(batch_size={"a": 1}).startswith("batch_size=: expected a value or a list")
    assert _refusal(batch_size=object()).startswith("batch_size=: expected text, a number")
    assert _refusal(repeats=[1, 2]) == "repeats=: expected one value, got 2"
    assert _refusal(env="A=1").startswith("env=: expected a dict")
    assert _refusal(env={"A B": 1}).startswith("env=: 'A B' is not a valid name")


def test_an_unknown_name_gets_the_nearest() -> None:
    assert _refusal(batch_sise=8) == "scale() has no setting batch_sise; did you mean batch_size?"
    with pytest.raises(BadInput, match="did you mean waterfall"):
        entries_of(_SCALE, {"waterfal": False}, ("waterfall",))
    with pytest.raises(BadInput, match=r"comm\(\) has no setting batch_size"):
        entries_of(CommStudy(), {"batch_size": 8})


def test_what_only_the_command_line_does_is_named() -> None:
    assert _refusal(dry_run=True) == "dry_run=: the command line shows plans: scalescope scale --dry-run"
    assert "scalescope scale --launcher slurm" in _refusal(launcher="slurm")
    assert "scalescope scale --launcher slurm" in _refusal(nodes=2)
