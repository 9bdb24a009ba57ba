"""Pairs: how fast every two ranks and every two nodes exchange, and which link is slower than the others."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scalescope.results.result import Result

End = TypeVar("End", bound=int | str)  # a rank or a node
Rendezvous = tuple[End, End]
_SLOW = 0.5  # of the usual rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Both directions between two ranks at once."""

    low: int
    high: int
    size_bytes: int
    time_s: float
    nodes: tuple[str, str] = ("", "")  # on which the two are

    @property
    def bytes_per_s(self) -> float:
        """In each direction."""
        return self.size_bytes / self.time_s

    @property
    def is_inside_a_node(self) -> bool:
        return self.nodes[0] == self.nodes[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link far below the usual one of its kind, in each direction."""

    name: str
    bytes_per_s: float
    usual_bytes_per_s: float


def pair_rows(results: Iterable[Result]) -> tuple[PairRow, ...]:
    """The largest size of every pair: the slower end of each launch, then the median over launches.

    A run may have gone on on other nodes: launches count that had their ranks where the last one had them.
    """
    found: dict[tuple[int, int, int], list[float]] = {}
    measured = [one for one in results if one.status == "ok" and _has_pairs(one)]
    hosts = _hosts(measured[-1]) if measured else {}
    for result in measured:
        here = _hosts(result)
        if any(hosts.setdefault(rank, host) != host for rank, host in here.items()):
            continue
        for key in {key for record in result.ranks for key in record.samples if key.startswith("pair/")}:
            ends = [record.samples[key] for record in result.ranks if record.samples.get(key)]
            if ends:
                _, pair, size = key.split("/")
                low, high = map(int, pair.split("-"))
                slower = max(statistics.median(times) for times in ends)
                found.setdefault((low, high, int(size)), []).append(slower)
    largest = max((size for _, _, size in found), default=0)
    return tuple(
        PairRow(
            low=low,
            high=high,
            size_bytes=size,
            time_s=statistics.median(times),
            nodes=(hosts.get(low, ""), hosts.get(high, "")),
        )
        for (low, high, size), times in sorted(found.items())
        if size == largest
    )


def _has_pairs(result: Result) -> bool:
    return any(key.startswith("pair/") for record in result.ranks for key in record.samples)


def _hosts(result: Result) -> dict[int, str]:
    return {record.rank: record.host for record in result.ranks}


def node_rates(pairs: Iterable[PairRow]) -> dict[Rendezvous[str], float]:
    """Bytes a second in each direction between every two nodes: their ranks exchanged at the same time."""
    return {meeting: sum(rates) for meeting, rates in _by_nodes(pairs).items()}


def _by_nodes(pairs: Iterable[PairRow]) -> dict[Rendezvous[str], list[float]]:
    found: dict[Rendezvous[str], list[float]] = {}
    for pair in pairs:
        if not pair.is_inside_a_node:
            low, high = sorted(pair.nodes)
            found.setdefault((low, high), []).append(pair.bytes_per_s)
    return found


def _comparable(pairs: Iterable[PairRow]) -> dict[Rendezvous[str], float]:
    """What nodes carry together, or for each pair of ranks where not all nodes have as many."""
    rates = _by_nodes(pairs)
    if len({len(rate) for rate in rates.values()}) == 1:
        return {meeting: sum(rate) for meeting, rate in rates.items()}
    return {meeting: statistics.fmean(rate) for meeting, rate in rates.items()}


def slow_links(pairs: tuple[PairRow, ...]) -> tuple[SlowLink, ...]:
    """Links inside nodes and between nodes, each held against their own kind, the slowest first.

    Between nodes a node or a link of nodes comes first; a rank is named where its node does not explain it.
    """
    inside = {(pair.low, pair.high): pair.bytes_per_s for pair in pairs if pair.is_inside_a_node}
    across = [pair for pair in pairs if not pair.is_inside_a_node]
    by_node = _comparable(across)
    bad_nodes, bad_meetings = {*slow_ends(by_node)}, {*slow_meetings(by_node)}
    unexplained = {
        (one.low, one.high): one.bytes_per_s
        for one in across
        if not bad_nodes & {*one.nodes} and tuple(sorted(one.nodes)) not in bad_meetings
    }
    found = [*_named(inside, "rank"), *_named(by_node, "node"), *_named(unexplained, "rank")]
    return tuple(sorted(found, key=lambda one: one.bytes_per_s / one.usual_bytes_per_s))


def _named(rates: Mapping[Rendezvous[End], float], kind: str) -> list[SlowLink]:
    """The slow links of one kind in words, with what the others carry."""
    ends, meetings = slow_ends(rates), slow_meetings(rates)
    if not ends and not meetings:
        return []
    bad = {*ends, *(end for meeting in meetings for end in meeting)}
    good = [rate for meeting, rate in rates.items() if not {*meeting} & bad] or [
        rate for meeting, rate in rates.items() if meeting not in meetings
    ]
    usual = statistics.median(good)
    found = [
        SlowLink(
            name=f"{kind} {end}'s link",
            bytes_per_s=max(rate for meeting, rate in rates.items() if end in meeting),
            usual_bytes_per_s=usual,
        )
        for end in ends
    ]
    return found + [
        SlowLink(
            name=f"the link between {kind}s {low} and {high}",
            bytes_per_s=rates[low, high],
            usual_bytes_per_s=usual,
        )
        for low, high in meetings
    ]


def slow_ends(rates: Mapping[Rendezvous[End], float]) -> tuple[End, ...]:
    """Ranks or nodes whose best meeting is far below the usual one's best: their own link is slow.

    Who met only one other cannot be told from that one.
    """
    own: dict[End, list[float]] = {}
    for meeting, rate in rates.items():
        for end in meeting:
            own.setdefault(end, []).append(rate)
    best = {end: max(found) for end, found in own.items() if len(found) > 1}
    if len(best) < 3:  # with two nobody can say whose link it is
        return ()
    usual = statistics.median(best.values())
    return tuple(end for end, rate in best.items() if rate < _SLOW * usual)


def slow_meetings(rates: Mapping[Rendezvous[End], float]) -> tuple[Rendezvous[End], ...]:
    """Meetings far below the usual one that no slow end explains."""
    if len(rates) < 3:
        return ()
    usual = statistics.median(rates.values())
    explained = {*slow_ends(rates)}
    return tuple(
        meeting for meeting, rate in rates.items() if rate < _SLOW * usual and not explained & {*meeting}
    )
