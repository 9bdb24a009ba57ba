"""Which node a rank is on, and in which order the ranks of several nodes meet in pairs."""

import os
import socket
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest

Pair = tuple[int, int]


def node_name() -> str:
    """The node as SLURM calls it, or the host's own name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def rounds_of_pairs(nodes: Sequence[str]) -> Iterator[list[Pair]]:
    """Rounds of pairs that exchange at the same time; `nodes` has each rank's.

    Inside a node every two ranks meet by themselves, while other nodes do the same. Then node meets node,
    with all ranks at once: the first of one with the first of the other, the second with the second, as
    rings over several network cards do. No round has two meetings that share a node, and 16 nodes of 8 ranks
    need 28 + 15 rounds instead of one for each of 8,128 pairs.
    """
    members = [[rank for rank, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    for side_by_side in zip_longest(*(combinations(ranks, 2) for ranks in members)):
        yield [pair for pair in side_by_side if pair is not None]
    for meeting in filter(None, tournament(len(members))):
        pairs = (pair for one, other in meeting for pair in zip(members[one], members[other], strict=False))
        yield [(min(pair), max(pair)) for pair in pairs]


def tournament(players: int) -> list[list[Pair]]:
    """Rounds in which everybody meets everybody once: one stays, the others move on by one seat."""
    seats = list(range(players)) + [-1] * (players % 2)  # -1: the other one pauses
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in facing if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
