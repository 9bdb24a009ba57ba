"""Rounds of pairs: all ranks of a node, then all pairs of nodes; no round uses a node twice."""

from itertools import combinations

import pytest

from scalescope.worker.process.node import rounds_of_pairs, tournament


@pytest.mark.parametrize("players", [1, 2, 3, 4, 7, 8])
def test_every_pair_comes_once_in_the_fewest_rounds(players: int) -> None:
    rounds = tournament(players)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert sorted(pairs) == list(combinations(range(players), 2))
    assert len(rounds) == (players - 1 if players % 2 == 0 else players) or players == 1
    for pairs in rounds:
        players_of_round = [player for pair in pairs for player in pair]
        assert len(players_of_round) == len(set(players_of_round))


@pytest.mark.parametrize("layout", ["aaaa", "aabb", "abab", "abc", "aaabbc", "abcdefgh", "aabbccdd"])
def test_pairs_inside_nodes_and_of_nodes_come_once_and_no_node_is_twice_in_a_round(layout: str) -> None:
    rounds = list(rounds_of_pairs(layout))
    for pairs in rounds:
        node_pairs = {frozenset((layout[low], layout[high])) for low, high in pairs}
        busy = [node for node_pair in node_pairs for node in node_pair]
        assert len(busy) == len(set(busy))
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs)) and all(low < high for low, high in pairs)
    every = set(combinations(range(len(layout)), 2))
    assert {pair for pair in pairs if layout[pair[0]] == layout[pair[1]]} == {
        (low, high) for low, high in every if layout[low] == layout[high]
    }
    assert {
        frozenset(layout[rank] for rank in pair) for pair in pairs if layout[pair[0]] != layout[pair[1]]
    } == {frozenset(two) for two in combinations(sorted(set(layout)), 2)}


def test_rounds_are_as_few_as_possible() -> None:
    assert list(rounds_of_pairs("ababab"))[-1] == [(0, 1), (2, 3), (4, 5)]  # all ranks of two nodes at once
    assert list(rounds_of_pairs("aaa")) == [[(0, 1)], [(0, 2)], [(1, 2)]]  # one host: pair after pair
    assert len(list(rounds_of_pairs("abcdefgh"))) == 7
    assert len(list(rounds_of_pairs([f"n{rank // 8}" for rank in range(128)]))) == 43
