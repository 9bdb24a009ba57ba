"""What a rank reports of its node."""

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any, TextIO

from scalescope.results.ranks import NCCL_LOG_VARIABLE, WATCH_VARIABLE
from scalescope.results.result import WINDOW

# ---- Which node a rank is on, and the order in which pairs of ranks are measured


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


# ---- Evidence that an attached rank hands over with its record: its node's telemetry, and NCCL's log


_CHOSEN = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
# NCCL's lines that tell how ranks are connected; the graph search fills thousands of others.
_TELLING = (
    "NCCL WARN",
    " via ",
    "Using network",
    "coll channels",
    "NET/",
    "NVLS",
    "GPU Direct",
    "NCCL version",
)
_MOST_LINES = 2_000


class NodeEvidence:
    """What this rank can say about its node; `questions` is the stream to its command line."""

    def __init__(self, rank: int, questions: TextIO) -> None:
        self._rank = str(rank)
        self._questions = questions
        self._is_watched = bool(os.environ.get(WATCH_VARIABLE))
        self._log = NcclLog(os.environ.get(NCCL_LOG_VARIABLE))
        self._logged: set[tuple[int, ...]] = set()  # groups of ranks whose log was handed over

    def system(self, system: dict[str, Any]) -> dict[str, Any]:
        """What was inspected, with the node's topology and without the variables that we set ourselves."""
        if self._log.is_ours:
            kept = {name: value for name, value in system["variables"].items() if name not in _CHOSEN}
            system = {**system, "variables": kept}
        answer = self._ask({"topology": system.get("link_matrix")})
        return system | {name: answer[name] for name in ("topology",) if name in answer}

    def begin(self, request: dict[str, Any]) -> None:
        """Have the node sampled from now on, where rank 0 asks this rank for it."""
        watched = request.get("watch", {}).get(self._rank)
        if watched is not None:
            self._ask({"begin": watched})

    def end(self, request: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
        """The record with what was sampled meanwhile, and with what NCCL logged of a new group of ranks."""
        if self._rank in request.get("watch", {}):
            counters = record.get("counters", {})
            answer = self._ask({"end": {name: counters.get(name) for name in WINDOW}})
            record = record | {name: answer[name] for name in ("telemetry",) if name in answer}
        lines = self._log.new_lines()
        members = tuple(request["ranks"])
        if lines and members not in self._logged:
            record = record | {"nccl_log": "\n".join(lines) + "\n"}
            if record.get("state") == "done":
                self._logged.add(members)
        return record

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of our command line; empty where nobody answers."""
        if not self._is_watched:
            return {}
        try:
            self._questions.write(json.dumps(question) + "\n")
            self._questions.flush()
            answer = json.loads(sys.stdin.readline() or "{}")
        except (OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}


class NcclLog:
    """The file that NCCL logs into, read from where the last reading ended."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._read_bytes = 0

    @property
    def is_ours(self) -> bool:
        """Whether we chose what NCCL logs."""
        return self._path is not None

    def new_lines(self) -> Sequence[str]:
        """The telling lines since the last reading; none where nothing was logged."""
        if self._path is None:
            return ()
        try:
            with self._path.open("rb") as log:
                log.seek(self._read_bytes)
                text = log.read()
        except OSError:  # NCCL was not used
            return ()
        self._read_bytes += len(text)
        lines = text.decode(errors="replace").splitlines()
        return [line for line in lines if any(words in line for words in _TELLING)][:_MOST_LINES]
