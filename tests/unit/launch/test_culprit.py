"""Which rank is to blame: the one whose failure explains the others'."""

import pytest

from scalescope.launch.culprit import RankFailure, find_culprit, find_hung_ranks


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


def test_an_error_that_another_end_explains_is_to_blame_only_without_others() -> None:
    behind = RankFailure(rank=0, message="Broken pipe", progress=(2,))
    ahead = RankFailure(rank=1, message="ValueError: a", progress=(3,))
    assert find_culprit([behind, ahead]).rank == 1
    assert find_culprit([behind]).rank == 0


def test_a_stopped_rank_hangs_whatever_its_progress() -> None:
    assert find_hung_ranks([(3, 5), (3, 4), (3, 5)], stopped=[2]) == [2]


def test_without_stopped_ranks_all_with_the_least_progress_hang() -> None:
    assert find_hung_ranks([(3, 5), (3, 4), (3, 4)], stopped=[]) == [1, 2]
    assert find_hung_ranks([(1,), (1,)], stopped=()) == [0, 1]
