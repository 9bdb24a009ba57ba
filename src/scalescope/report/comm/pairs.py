"""Pairs of ranks and of nodes: their table, the slow ones among them, and the same as data."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from scalescope.analysis.comm.pairs import PairRow, node_rates, pair_rows, slow_links
from scalescope.experiment.trial import Trial
from scalescope.report.caveats import context_notes
from scalescope.report.numbers import counted, data_rate
from scalescope.report.section import Section, Table
from scalescope.results.run import Run

Rates = dict[tuple[str, str], float]  # by the two ends
_NO_SLOW_PAIR = "No pair is slower than the others."
_NO_SLOW_PAIR_OF_A_KIND = "No pair is slower than the others with the same kind of path."
_ONE_PAIR = "There is only one pair, so there is nothing to compare it with."
_MOST_ROWS = 28  # what eight ranks have


def pair_sections(run: Run) -> list[Section]:
    """One for every trial that measured pairs."""
    return [_pair_section(pairs, context_notes(trial)) for pairs, trial in _pairs_by_trial(run)]


def _pairs_by_trial(run: Run) -> Iterator[tuple[tuple[PairRow, ...], Trial]]:
    for trial_id in dict.fromkeys(result.trial_id for result in run.results):
        results = [result for result in run.results if result.trial_id == trial_id]
        if pairs := pair_rows(results, run.environment):
            yield pairs, results[0].trial


def pairs_verdict(run: Run) -> str | None:
    """The slowest and the median pair of ranks, by class of paths; None where pairs were not measured."""
    pairs = pair_rows(run.results, run.environment)
    if not pairs:
        return None
    across = node_rates(pairs)
    rates: Rates = across or {(str(pair.low), str(pair.high)): pair.bytes_per_s for pair in pairs}
    if len(rates) == 1:
        ((low, high),) = rates
        names = f"{low} and {high}" if across else f"Ranks {low} and {high}"
        return f"{names} exchange {data_rate(*rates.values())} in each direction."
    spread = _spread(rates) if across else _spread_by_path(pairs)
    return f"{counted(len(rates), 'pair')} of {'nodes' if across else 'ranks'}: {spread}."


def _spread_by_path(pairs: Sequence[PairRow]) -> str:
    """Median and slowest of every class: NVLink beside PCIe would only show that they differ."""
    classes: dict[str | None, Rates] = {}
    for pair in pairs:
        classes.setdefault(pair.path, {})[str(pair.low), str(pair.high)] = pair.bytes_per_s
    if len(classes) == 1:
        return _spread(*classes.values())
    return "; ".join(f"{path or 'unknown path'} {_spread(rates)}" for path, rates in classes.items())


def _spread(rates: Rates) -> str:
    (low, high), slowest = min(rates.items(), key=lambda rate: rate[1])
    text = f"median {data_rate(statistics.median(rates.values()))} in each direction"
    return text if len(rates) == 1 else f"{text}, slowest ({low} and {high}) {data_rate(slowest)}"


def pairs_json(run: Run) -> list[dict[str, Any]]:
    """results.json → pairs."""
    return [
        {
            "ranks": [pair.low, pair.high],
            "nodes": list(pair.nodes),
            "size_bytes": pair.size_bytes,
            "bytes_per_s": pair.bytes_per_s,
            "path": pair.path,
        }
        for pairs, _ in _pairs_by_trial(run)
        for pair in pairs
    ]


def _pair_section(pairs: tuple[PairRow, ...], notes: list[str]) -> Section:
    """Every two ranks of one node; of several nodes every two nodes, and a line for what is inside each."""
    across = node_rates(pairs)
    has_paths = not across and any(pair.path for pair in pairs)
    rates: list[tuple[tuple[str, ...], float]]
    if across:
        rates = [((f"{low} ↔ {high}",), rate) for (low, high), rate in across.items()]
    else:
        rates = [(_cells(pair, has_paths=has_paths), pair.bytes_per_s) for pair in pairs]
    cut = len(rates) > _MOST_ROWS
    shown = sorted(rates, key=lambda rate: rate[1])[:_MOST_ROWS] if cut else rates
    lines = [f"The slowest {len(shown)} of {len(rates)} are shown; results.json has all."] if cut else []
    none_slow = _NO_SLOW_PAIR_OF_A_KIND if len({pair.path for pair in pairs}) > 1 else _NO_SLOW_PAIR
    lines += _slow_lines(pairs) or [none_slow if len(rates) > 1 else _ONE_PAIR]
    columns = ("nodes" if across else "ranks", *(("path",) if has_paths else ()), "per direction")
    return Section(
        title="Pairs of nodes, all ranks of both at once" if across else "Pairs, both directions at once",
        table=Table(columns=columns, rows=tuple((*names, data_rate(rate)) for names, rate in shown)),
        lines=(*lines, *(_inside_lines(pairs) if across else ()), *notes),
    )


def _cells(pair: PairRow, *, has_paths: bool) -> tuple[str, ...]:
    ranks = f"{pair.low} ↔ {pair.high}"
    return (ranks, pair.path or "unknown") if has_paths else (ranks,)


def _slow_lines(pairs: tuple[PairRow, ...]) -> list[str]:
    return [
        f"Slow: {link.name} at {data_rate(link.bytes_per_s)}, others at {data_rate(link.usual_bytes_per_s)}."
        for link in slow_links(pairs)
    ]


def _inside_lines(pairs: tuple[PairRow, ...]) -> list[str]:
    """What the pairs inside each node carry."""
    nodes: dict[str, list[PairRow]] = {}
    for pair in pairs:
        if pair.is_inside_a_node:
            nodes.setdefault(pair.nodes[0], []).append(pair)
    return [f"Inside {node}: {_spread_by_path(members)}." for node, members in nodes.items()]
