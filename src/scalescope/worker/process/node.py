"""Which node a rank is on, and the order in which pairs of ranks are measured."""

import os
import socket
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest

Pair = tuple[int, int]


def node_name() -> str:
    """The node as SLURM calls it, or the host's own name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def rounds_of_pairs(nodes: Sequence[str]) -> Iterator[list[Pair]]:
    """Rounds of pairs that exchange data at the same time; `nodes` has the node of each rank.

    First the pairs inside each node, one pair per node and round, all nodes in parallel. Then pairs of nodes,
    all their ranks at once: first rank with first rank, second with second, as rings over several network
    cards do. No node takes part in two node pairs of a round, and 16 nodes of 8 ranks need 28 + 15 rounds
    instead of one for each of 8,128 pairs.
    """
    members = [[rank for rank, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    for parallel_pairs in zip_longest(*(combinations(ranks, 2) for ranks in members)):
        yield [pair for pair in parallel_pairs if pair is not None]
    for node_pairs in filter(None, tournament(len(members))):
        pairs = (
            pair for node, other in node_pairs for pair in zip(members[node], members[other], strict=False)
        )
        yield [(min(pair), max(pair)) for pair in pairs]


def tournament(players: int) -> list[list[Pair]]:
    """All pairs in rounds without overlap (the circle method): one seat stays, the others rotate."""
    seats = list(range(players)) + [-1] * (players % 2)  # -1: its partner pauses
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in facing if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
