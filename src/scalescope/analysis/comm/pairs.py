"""Pairs: how fast every two ranks and every two nodes exchange, and which link is slower than the others."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scalescope.analysis.comm.expected import link_ends, path_class
from scalescope.results.result import Result, undisturbed

End = TypeVar("End", bound=int | str)  # a rank or a node
EndPair = tuple[End, End]
_SLOW = 0.5  # of the usual rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Both directions between two ranks at once."""

    low: int
    high: int
    size_bytes: int
    time_s: float
    nodes: tuple[str, str] = ("", "")  # on which the two are
    path: str | None = None  # its class, within which pairs are compared; None is unknown

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
    path: str | None = None  # the class of paths that it is compared with


def pair_rows(results: Iterable[Result], environment: Mapping[str, Any] | None = None) -> tuple[PairRow, ...]:
    """The largest size of every pair: the slower end of each launch, then the median over launches.

    Medians, because a slow link is slow in most iterations, and a pause of the host is not a slow link. A run
    may have gone on on other nodes: launches count that had their ranks where the last one had them.
    `environment` has the topology of the hosts, which says what paths pairs have.
    """
    times_by_pair: dict[tuple[int, int, int], list[float]] = {}
    measured = undisturbed(result for result in results if result.status == "ok" and _has_pairs(result))
    hosts = _hosts(measured[-1]) if measured else {}
    for result in measured:
        here = _hosts(result)
        if any(hosts.setdefault(rank, host) != host for rank, host in here.items()):
            continue
        slower_end: dict[str, float] = {}
        for record in result.ranks:
            for key, times in record.samples.items():
                if key.startswith("pair/") and times:
                    slower_end[key] = max(slower_end.get(key, 0.0), statistics.median(times))
        for key, slower in slower_end.items():
            _, pair, size = key.split("/")
            low, high = map(int, pair.split("-"))
            times_by_pair.setdefault((low, high, int(size)), []).append(slower)
    largest = max((size for _, _, size in times_by_pair), default=0)
    paths = _paths(measured[-1], environment) if measured and environment else {}
    return tuple(
        PairRow(
            low=low,
            high=high,
            size_bytes=size,
            time_s=statistics.median(times),
            nodes=(hosts.get(low, ""), hosts.get(high, "")),
            path=paths.get((low, high)),
        )
        for (low, high, size), times in sorted(times_by_pair.items())
        if size == largest
    )


def _paths(result: Result, environment: Mapping[str, Any]) -> dict[EndPair[int], str | None]:
    """The class of path between every two ranks of a launch."""
    ranks = [record.rank for record in result.ranks]
    ends = dict(zip(ranks, link_ends(environment, result.ranks), strict=True))
    return {(low, high): path_class(ends[low], ends[high]) for low in ends for high in ends if low < high}


def _has_pairs(result: Result) -> bool:
    return any(key.startswith("pair/") for record in result.ranks for key in record.samples)


def _hosts(result: Result) -> dict[int, str]:
    return {record.rank: record.host for record in result.ranks}


def node_rates(pairs: Iterable[PairRow]) -> dict[EndPair[str], float]:
    """Bytes a second in each direction between every two nodes: their ranks exchanged at the same time."""
    return {pair: sum(rates) for pair, rates in _by_nodes(pairs).items()}


def _by_nodes(pairs: Iterable[PairRow]) -> dict[EndPair[str], list[float]]:
    rates: dict[EndPair[str], list[float]] = {}
    for pair in pairs:
        if not pair.is_inside_a_node:
            low, high = sorted(pair.nodes)
            rates.setdefault((low, high), []).append(pair.bytes_per_s)
    return rates


def _comparable(pairs: Iterable[PairRow]) -> dict[EndPair[str], float]:
    """What nodes carry together, or for each pair of ranks where not all nodes have as many."""
    rates = _by_nodes(pairs)
    if len({len(rate) for rate in rates.values()}) == 1:
        return {pair: sum(rate) for pair, rate in rates.items()}
    return {pair: statistics.fmean(rate) for pair, rate in rates.items()}


def slow_links(pairs: tuple[PairRow, ...]) -> tuple[SlowLink, ...]:
    """Links inside nodes and between nodes, each held against its own class of paths, the slowest first.

    Between nodes a node or a link of nodes comes first; a rank is named where its node does not explain it.
    """
    inside = [pair for pair in pairs if pair.is_inside_a_node]
    across = [pair for pair in pairs if not pair.is_inside_a_node]
    by_node = _comparable(across)
    bad_nodes, bad_pairs = {*slow_ends(by_node)}, {*slow_pairs(by_node)}
    unexplained = [
        pair
        for pair in across
        if not bad_nodes & {*pair.nodes} and tuple(sorted(pair.nodes)) not in bad_pairs
    ]
    links = [*_by_path(inside), *_named(by_node, "node"), *_by_path(unexplained)]
    by_name: dict[str, SlowLink] = {}
    for link in sorted(links, key=lambda link: link.bytes_per_s / link.usual_bytes_per_s):
        by_name.setdefault(link.name, link)  # a rank may be slow over several classes of paths
    return tuple(by_name.values())


def _by_path(pairs: Iterable[PairRow]) -> list[SlowLink]:
    """The slow links of ranks, class by class: NVLink is faster than PCIe, which is not a fault."""
    classes: dict[str | None, dict[EndPair[int], float]] = {}
    for pair in pairs:
        classes.setdefault(pair.path, {})[pair.low, pair.high] = pair.bytes_per_s
    return [
        dataclasses.replace(link, path=path)
        for path, rates in classes.items()
        for link in _named(rates, "rank")
    ]


def _named(rates: Mapping[EndPair[End], float], kind: str) -> list[SlowLink]:
    """The slow links of one kind in words, with what the others carry."""
    ends, slow = slow_ends(rates), slow_pairs(rates)
    if not ends and not slow:
        return []
    bad = {*ends, *(end for pair in slow for end in pair)}
    good = [rate for pair, rate in rates.items() if not {*pair} & bad] or [
        rate for pair, rate in rates.items() if pair not in slow
    ]
    usual = statistics.median(good)
    links = [
        SlowLink(
            name=f"{kind} {end}'s link",
            bytes_per_s=max(rate for pair, rate in rates.items() if end in pair),
            usual_bytes_per_s=usual,
        )
        for end in ends
    ]
    return links + [
        SlowLink(
            name=f"the link between {kind}s {low} and {high}",
            bytes_per_s=rates[low, high],
            usual_bytes_per_s=usual,
        )
        for low, high in slow
    ]


def slow_ends(rates: Mapping[EndPair[End], float]) -> tuple[End, ...]:
    """Ranks or nodes whose fastest pair is far below the usual fastest pair: their own link is slow.

    An end that was measured with only one other cannot be separated from it.
    """
    rates_by_end: dict[End, list[float]] = {}
    for pair, rate in rates.items():
        for end in pair:
            rates_by_end.setdefault(end, []).append(rate)
    best = {end: max(end_rates) for end, end_rates in rates_by_end.items() if len(end_rates) > 1}
    if len(best) < 3:  # with two ends, either may have the slow link
        return ()
    usual = statistics.median(best.values())
    return tuple(end for end, rate in best.items() if rate < _SLOW * usual)


def slow_pairs(rates: Mapping[EndPair[End], float]) -> tuple[EndPair[End], ...]:
    """Pairs far below the usual rate that no slow end explains."""
    if len(rates) < 3:
        return ()
    usual = statistics.median(rates.values())
    explained = {*slow_ends(rates)}
    return tuple(pair for pair, rate in rates.items() if rate < _SLOW * usual and not explained & {*pair})
