"""Rounds of pairs: all ranks of a node meet, then all nodes, and no two meetings share a node."""

from itertools import combinations

import pytest

from scalescope.worker.process.node import rounds_of_pairs, tournament


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
def test_every_meeting_has_its_nodes_to_itself(layout: str) -> None:
    rounds = list(rounds_of_pairs(layout))
    for one in rounds:
        meetings = {frozenset((layout[low], layout[high])) for low, high in one}
        busy = [node for meeting in meetings for node in meeting]
        assert len(busy) == len(set(busy))
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("layout", ["aaaa", "aabb", "abab", "abc", "aaabbc", "abcdefgh", "aabbccdd"])
def test_all_ranks_of_a_node_and_all_nodes_meet_once(layout: str) -> None:
    met = [pair for one in rounds_of_pairs(layout) for pair in one]
    assert len(met) == len(set(met)) and all(low < high for low, high in met)
    every = set(combinations(range(len(layout)), 2))
    assert {pair for pair in met if layout[pair[0]] == layout[pair[1]]} == {
        (low, high) for low, high in every if layout[low] == layout[high]
    }
    assert {
        frozenset(layout[rank] for rank in pair) for pair in met if layout[pair[0]] != layout[pair[1]]
    } == {frozenset(two) for two in combinations(sorted(set(layout)), 2)}


def test_two_nodes_meet_with_all_their_ranks_at_once() -> None:
    assert list(rounds_of_pairs("ababab"))[-1] == [(0, 1), (2, 3), (4, 5)]


def test_sixteen_nodes_of_eight_ranks_need_43_rounds() -> None:
    assert len(list(rounds_of_pairs([f"n{rank // 8}" for rank in range(128)]))) == 43


def test_nodes_of_one_rank_need_a_round_less_than_there_are() -> None:
    assert len(list(rounds_of_pairs("abcdefgh"))) == 7


def test_one_host_measures_pair_after_pair() -> None:
    assert list(rounds_of_pairs("aaa")) == [[(0, 1)], [(0, 2)], [(1, 2)]]
