"""Which rank is to blame: the one whose failure explains the others', or both that disagree."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.launch.culprit import RankFailure, find_culprit, find_hung_ranks
from scalescope.launch.launcher import Outcome
from scalescope.launch.local.logs import explained_by_calls
from scalescope.results.ranks import CallSlot, CollectiveCall, slot_file


@pytest.mark.parametrize(
    ("failures", "culprit"),
    [
        ([(0, "Connection reset by peer", 1.0), (1, "ValueError: mine", 5.0)], 1),
        ([(0, "ValueError: mine", 5.0), (1, "ValueError: mine too", 4.0)], 1),
        ([(0, "Connection closed by peer", 9.0), (1, "lost", 0.0)], 1),
        ([(0, "Wait timeout", 9.0), (1, "lost", 0.0)], 1),
        ([(0, "torch.OutOfMemoryError: CUDA out of memory", 9.0), (1, "lost", 0.0)], 0),
    ],
)
def test_clocks_of_several_hosts_do_not_decide_who_failed_first(
    failures: list[tuple[int, str, float]], culprit: int
) -> None:
    known = [
        RankFailure(rank=rank, message=text, at_s=at_s, is_lost=text == "lost")
        for rank, text, at_s in failures
    ]
    assert find_culprit(known).rank == culprit


def test_the_rank_with_the_least_progress_is_to_blame_whoever_failed_first() -> None:
    ahead = RankFailure(rank=0, message="ValueError: a", progress=(3, 7), at_s=1.0)
    behind = RankFailure(rank=1, message="ValueError: b", progress=(3, 6), at_s=2.0)
    assert find_culprit([ahead, behind]).rank == 1
    # An error that another end explains is to blame only without others.
    behind = RankFailure(rank=0, message="Broken pipe", progress=(2,))
    ahead = RankFailure(rank=1, message="ValueError: a", progress=(3,))
    assert find_culprit([behind, ahead]).rank == 1
    assert find_culprit([behind]).rank == 0


def test_stopped_ranks_hang_and_without_them_all_with_the_least_progress() -> None:
    assert find_hung_ranks([(3, 5), (3, 4), (3, 5)], stopped=[2]) == [2]
    assert find_hung_ranks([(3, 5), (3, 4), (3, 4)], stopped=[]) == [1, 2]
    assert find_hung_ranks([(1,), (1,)], stopped=()) == [0, 1]


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
