"""Levers that a script has no use for, by what the launches of its current settings showed."""

from typing import Any

import pytest

from scalescope.studies.tuning.facts import already_in_script
from scalescope.studies.tuning.levers import Candidate
from tests.builders.commands import command_launch, make_command
from tests.builders.results import make_result, make_trial

SCRIPT = make_command()


def left_out(name: str, value: Any, *, asked: bool = False, **observed: Any) -> str | None:
    counters = {f"observed/{of}": fact for of, fact in observed.items()}
    launch = command_launch(SCRIPT, 0.01, **counters)
    candidate = Candidate(name=name, value=value, trial=SCRIPT, changes="rounding", asked=asked)
    return already_in_script([launch], SCRIPT, {"it": candidate}).get("it")


@pytest.mark.parametrize(
    ("name", "value", "observed"),
    [
        ("precision", "bf16", {"autocast": "bf16"}),
        ("precision", "tf32", {"autocast": "fp16"}),
        ("precision", "bf16", {"parameter_format": "bf16"}),
        ("precision", "tf32", {"tf32": 1}),
        ("compile", "default", {"compiled": 1}),
        ("fused_optimizer", True, {"fused": 1, "fusible": 1}),
        ("fused_optimizer", True, {"fused": 0, "fusible": 0}),
        ("num_workers", 4, {"loader_workers": 4}),
        ("pin_memory", True, {"loader_pinned": 1}),
        ("persistent_workers", True, {"loader_persistent": 1}),
    ],
)
def test_what_the_script_does_is_not_tried_again(name: str, value: Any, observed: dict[str, Any]) -> None:
    assert left_out(name, value, **observed) is not None
    assert left_out(name, value, asked=True, **observed) is None
    assert left_out(name, value) is None  # nothing is known


@pytest.mark.parametrize(
    ("name", "value", "observed"),
    [
        ("precision", "bf16", {"tf32": 1, "autocast": None, "parameter_format": None}),
        ("precision", "tf32", {"tf32": 0}),
        ("num_workers", 4, {"loader_workers": 2}),
        ("pin_memory", False, {"loader_pinned": 1}),
        ("threads_per_rank", 1, {"compiled": 1}),
    ],
)
def test_what_it_does_not_is_tried(name: str, value: Any, observed: dict[str, Any]) -> None:
    assert left_out(name, value, **observed) is None


def test_the_reason_names_the_format() -> None:
    assert left_out("precision", "bf16", autocast="bf16") == "the script already uses bf16 autocast"


def test_nothing_is_said_of_other_jobs() -> None:
    job = make_trial()
    candidate = Candidate(name="compile", value="default", trial=job, changes="rounding")
    assert already_in_script([make_result(job, [[0.01] * 10])], job, {"it": candidate}) == {}
