"""Rounds of pairs: everybody meets everybody once, and nobody shares a node with another pair."""

from itertools import combinations

import pytest

from scalescope.worker.node import rounds_of_pairs, tournament


@pytest.mark.parametrize("players", range(1, 12))
def test_everybody_meets_everybody_once_in_the_fewest_rounds(players: int) -> None:
    rounds = tournament(players)
    met = [pair for one in rounds for pair in one]
    assert sorted(met) == list(combinations(range(players), 2))
    assert len(rounds) == (players - 1 if players % 2 == 0 else players) or players == 1
    for one in rounds:
        seated = [player for pair in one for player in pair]
        assert len(seated) == len(set(seated))


@pytest.mark.parametrize("layout", ["aaaa", "aabb", "abab", "abc", "aaabbc", "abcdefgh", "aabbccdd"])
def test_every_pair_has_its_nodes_to_itself(layout: str) -> None:
    rounds = list(rounds_of_pairs(layout))
    met = [pair for one in rounds for pair in one]
    assert sorted(met) == list(combinations(range(len(layout)), 2))
    for one in rounds:
        busy = [node for low, high in one for node in {layout[low], layout[high]}]
        assert len(busy) == len(set(busy))


def test_nodes_of_one_rank_need_a_round_less_than_there_are() -> None:
    assert len(list(rounds_of_pairs("abcdefgh"))) == 7


def test_one_host_measures_pair_after_pair() -> None:
    assert list(rounds_of_pairs("aaa")) == [[(0, 1)], [(0, 2)], [(1, 2)]]
