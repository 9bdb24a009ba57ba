"""Placement lines: every rank up to eight, a line for each node beyond."""

import pytest

from scalescope.report.placement import placement_lines
from scalescope.results.ranks.rank_placement import RankPlacement


def placed(rank: int, host: str = "node", name: str = "H100") -> RankPlacement:
    return RankPlacement(rank=rank, host=host, device_name=name, line=f"[Rank {rank}] on {name}")


@pytest.mark.parametrize("ranks", [1, 8])
def test_few_ranks_are_shown_one_by_one(ranks: int) -> None:
    assert placement_lines([placed(rank) for rank in range(ranks)]) == [
        f"[Rank {rank}] on H100" for rank in range(ranks)
    ]


def test_more_than_eight_ranks_are_grouped_by_node() -> None:
    ranks = [placed(rank, "a" if rank < 8 else "b") for rank in range(16)]
    assert placement_lines(ranks) == [
        "[Ranks 0-7] a: 8 ranks, name=H100",
        "[Ranks 8-15] b: 8 ranks, name=H100",
    ]


def test_different_devices_of_a_node_are_all_named() -> None:
    ranks = [placed(rank, name="H200" if rank < 8 else "H100") for rank in range(12)]
    assert placement_lines(ranks) == ["[Ranks 0-11] node: 12 ranks, name=H100 / H200"]


def test_a_rank_that_wrote_nothing_is_placed_nowhere() -> None:
    ranks = [RankPlacement.from_record(rank, {}) for rank in range(9)]
    assert placement_lines(ranks[:1]) == ["unknown"]
    assert placement_lines(ranks) == ["[Ranks 0-8] unknown: 9 ranks, name=unknown"]
