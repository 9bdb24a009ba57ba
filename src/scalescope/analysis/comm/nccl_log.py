"""Reads NCCL's own INFO log: which transport, cards, algorithm, protocol and channels it really chose."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.catalog.benchmarks.comm import NCCL_LOG
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.stored.files import Unreadable, inside, read_text

# A connection: `[send] via NET/IB/0/GDRDMA`, or `via NET/IB/0(3)/GDRDMA` through the card of rank 3. The name
# of a network plugin may hold blanks.
_NET = re.compile(r"\bvia NET/([^/]+)/(\d+)(?:\(\d+\))?((?:/\w+)*)")
_TRANSPORT = re.compile(r"\bvia ([A-Z0-9]+(?:/[A-Za-z0-9]+)*)")
_NETWORK = re.compile(r"Using network (\S.*?)\s*$")  # a plugin's name may hold blanks
_CARDS = re.compile(r"NET/IB : Using (.*)")
_CARD = re.compile(r"\[(\d+)\]([\w.-]+):\d+/\w+")
_CHANNELS = re.compile(r"(\d+) coll channels")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_NVLS = re.compile(r"NVLS multicast support is (available|not available)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclChoices:
    """What NCCL logged that it uses; empty where it logged nothing."""

    transports: tuple[str, ...]
    network: str | None
    channels: int | None
    algorithms: tuple[str, ...]
    nvls: bool | None
    # Of connections over a network: how many a host has by kind (NET/IB/GDRDMA), and the cards it uses. Hosts
    # are those of the ranks whose logs were read; "" where that is not known.
    connections: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    used_nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def uses_sockets(self) -> bool:
        return any(transport.startswith("NET/Socket") for transport in self.transports)

    @property
    def network_transports(self) -> tuple[str, ...]:
        """The kinds of connections over a network."""
        return tuple(dict.fromkeys(kind for of_host in self.connections.values() for kind in of_host))

    @property
    def uses_gpudirect(self) -> bool | None:
        """Whether cards of InfiniBand or RoCE read GPU memory on every connection; None without any."""
        kinds = [kind for kind in self.network_transports if _is_rdma(kind)]
        return all("GDRDMA" in kind for kind in kinds) if kinds else None


def _is_rdma(kind: str) -> bool:
    return kind.startswith("NET/IB")


def read_logs(logs: Iterable[tuple[str, Iterable[str]]]) -> NcclChoices:
    """Collect from the INFO lines of ranks, each with its host."""
    log = _Log()
    for host, lines in logs:
        cards: dict[str, str] = {}  # of this rank, by NCCL's number
        for line in lines:
            if "NCCL INFO" in line:
                log.read_connection(line, host, cards)
                log.read_settings(line)
    return NcclChoices(
        transports=tuple(log.transports),
        network=log.network,
        channels=log.channels,
        algorithms=tuple(log.algorithms),
        nvls=log.nvls,
        connections=log.connections,
        used_nics={host: tuple(sorted(names)) for host, names in log.nics.items()},
    )


class _Log:
    """What was read so far."""

    def __init__(self) -> None:
        self.transports: dict[str, None] = {}
        self.algorithms: dict[str, None] = {}
        self.network: str | None = None
        self.channels: int | None = None
        self.nvls: bool | None = None
        self.connections: dict[str, dict[str, int]] = {}
        self.nics: dict[str, set[str]] = {}

    def read_connection(self, line: str, host: str, cards: dict[str, str]) -> None:
        if match := _CARDS.search(line):
            cards.update(_CARD.findall(match[1]))
        if match := _NET.search(line):
            kind = f"NET/{match[1]}{match[3]}"
            self.transports[kind] = None
            counts = self.connections.setdefault(host, {})
            counts[kind] = counts.get(kind, 0) + 1
            self.nics.setdefault(host, set()).add(cards.get(match[2], match[2]))
        elif match := _TRANSPORT.search(line):
            self.transports[match[1]] = None

    def read_settings(self, line: str) -> None:
        if match := _NETWORK.search(line):
            self.network = match[1]
        if match := _CHANNELS.search(line):
            self.channels = int(match[1])
        if match := _CHOICE.search(line):
            self.algorithms[f"{match[1]} {match[3]}/{match[4]}"] = None
        if match := _NVLS.search(line):
            self.nvls = match[1] == "available"


def logged_launches(run: Run) -> list[Result]:
    """Launches over NCCL that left a log: those made for it first, then those of attached ranks.

    Attached ranks log whenever a new group of them connects.
    """
    finished = run.of_status("ok")
    made_for_it = [result for result in finished if result.trial.purpose == NCCL_LOG]
    others = [result for result in finished if result.trial.purpose != NCCL_LOG]
    over_nccl = (result for result in others if result.trial.backend == "nccl")
    return [*made_for_it, *(result for result in over_nccl if nccl_choices(run, result).transports)]


def nccl_choices(run: Run, result: Result) -> NcclChoices:
    """What NCCL chose, from the ranks' logs of a launch."""
    return read_logs(
        (rank.host, _lines(run.folder_of(result), f"{result.trial_id}-{result.launch}-{rank.rank}.log"))
        for rank in result.ranks
    )


def _lines(folder: Path, name: str) -> list[str]:
    """The lines of a rank's log; none where there is no log."""
    try:
        return read_text(inside(folder, f"logs/{name}")).splitlines()
    except (OSError, Unreadable):
        return []
