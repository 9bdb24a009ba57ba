"""Which node a rank is on, and in which order the ranks of several nodes meet in pairs."""

import os
import socket
from collections.abc import Iterator, Sequence
from itertools import combinations, product

Pair = tuple[int, int]


def node_name() -> str:
    """The node as SLURM calls it, or the host's own name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def rounds_of_pairs(nodes: Sequence[str]) -> Iterator[list[Pair]]:
    """Every two ranks once, in rounds in which no two pairs share a node; `nodes` has each rank's.

    So a pair shares neither cores nor network cards with another and is still measured by itself. N nodes
    of one rank need N-1 rounds instead of N(N-1)/2.
    """
    members = [[rank for rank, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    yield from _side_by_side([list(combinations(ranks, 2)) for ranks in members])
    for meeting in tournament(len(members)):
        yield from _side_by_side([list(product(members[one], members[other])) for one, other in meeting])


def _side_by_side(lists: list[list[Pair]]) -> Iterator[list[Pair]]:
    """The first of each list, then the second of each."""
    for place in range(max(map(len, lists), default=0)):
        pairs = (one[place] for one in lists if place < len(one))
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
