"""A launch whose ranks called different collectives has failed by that, whatever ended it."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.launch.launcher import Outcome
from scalescope.launch.local.disagreement import explained_by_calls
from scalescope.results.ranks.collective_calls import CallSlot, CollectiveCall, slot_file

_KILLED = Outcome(status="failed", reason="rank 0 was killed by SIGABRT", rank=0, step=4, log="0.log")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for rank, name in enumerate(("all_reduce", "broadcast")):
        CallSlot(slot_file(tmp_path, rank)).write(CollectiveCall(number=5, name=name))
    return tmp_path


@pytest.mark.parametrize("outcome", [_KILLED, dataclasses.replace(_KILLED, status="hang")])
def test_both_ranks_are_named(directory: Path, outcome: Outcome) -> None:
    explained = explained_by_calls(outcome, directory, 2)
    assert (explained.status, explained.rank, explained.step) == ("failed", None, 4)
    assert explained.reason == (
        "ranks 0 and 1 call different collectives at step 4: rank 0 all_reduce, rank 1 broadcast"
    )
    assert explained.log == outcome.log


@pytest.mark.parametrize(
    "outcome", [Outcome(status="ok"), dataclasses.replace(_KILLED, bad_input=True), Outcome(status="oom")]
)
def test_other_outcomes_stay(directory: Path, outcome: Outcome) -> None:
    assert explained_by_calls(outcome, directory, 2) is outcome


def test_without_records_nothing_changes(tmp_path: Path) -> None:
    assert explained_by_calls(_KILLED, tmp_path, 2) is _KILLED
