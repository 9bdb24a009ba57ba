"""Placement lines: every rank up to eight, a line for each node beyond."""

import pytest

from scalescope.report.placement import placement_lines


def lines_of(ranks: int, name: str = "H100") -> list[str]:
    return [
        f"[Rank {rank}] CUDA_VISIBLE_DEVICES=unset, LOCAL_RANK={rank % 8}, current_device=cuda:{rank % 8}, "
        f"name={name}"
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 8])
def test_few_ranks_are_shown_one_by_one(ranks: int) -> None:
    assert placement_lines(lines_of(ranks), ["node"] * ranks) == lines_of(ranks)


def test_more_than_eight_ranks_are_grouped() -> None:
    assert placement_lines(lines_of(9), ["node"] * 9) == ["[Ranks 0-8] node: 9 ranks, name=H100"]


def test_more_than_eight_ranks_are_grouped_by_node() -> None:
    hosts = ["a"] * 8 + ["b"] * 8
    assert placement_lines(lines_of(16), hosts) == [
        "[Ranks 0-7] a: 8 ranks, name=H100",
        "[Ranks 8-15] b: 8 ranks, name=H100",
    ]


def test_different_devices_of_a_node_are_all_named() -> None:
    lines = lines_of(8, "H200") + lines_of(12, "H100")[8:]
    assert placement_lines(lines, ["node"] * 12) == ["[Ranks 0-11] node: 12 ranks, name=H100 / H200"]


def test_ranks_without_a_known_placement_are_accepted() -> None:
    assert placement_lines(["unknown"] * 9, ["node"] * 9) == ["[Ranks unknown] node: 9 ranks, name=unknown"]
