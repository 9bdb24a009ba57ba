"""The sections of `comm`: nccl-tests' table, a sentence, the pairs, and the curves as data."""

import statistics
from typing import Any

from scalescope.analysis.collectives import CollectiveRow, collective_rows
from scalescope.analysis.comm.curve import Curve, alpha_beta, fit, with_root
from scalescope.analysis.comm.expectation import expectation_of
from scalescope.analysis.comm.nccl_log import nccl_choices
from scalescope.analysis.comm.pairs import PairRow, node_rates, pair_rows, slow_links
from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import NCCL_LOG
from scalescope.report.caveats import context
from scalescope.report.comm.nccl_tests import table_text
from scalescope.report.numbers import counted, data_rate, data_size, in_us_or_ms, percent
from scalescope.report.section import Section, Table
from scalescope.results.result import SCHEMA_VERSION, Result
from scalescope.results.run import Run

_NO_SLOW_PAIR = "No pair is slower than the others."
_ONE_PAIR = "There is only one pair, so there is nothing to compare it with."
_MOST_ROWS = 28  # of pairs: what eight ranks have


def communication_sections(run: Run) -> tuple[Section, ...]:
    """A sentence per trial, then the table of nccl-tests, then what NCCL chose and the pairs."""
    rows = _asked_first(run)
    shown = []
    if rows:
        shown.append(Section(lines=_sentences(rows, run)))
        shown.append(Section(lines=tuple(table_text(rows).splitlines()), details=_details(rows)))
    shown += [_nccl_section(run, result) for result in run.of_status("ok") if _reads_nccl_log(result)]
    shown += [_pair_section(*trial) for trial in _pairs_by_trial(run)]
    return tuple(shown)


def _asked_first(run: Run) -> tuple[CollectiveRow, ...]:
    """What was asked for, then the same inside a node, then between nodes."""
    order = ("all", "one_node", "one_per_node")
    return tuple(sorted(collective_rows(run.results), key=lambda row: order.index(row.among)))


def communication_brief(run: Run) -> tuple[Section, ...]:
    """The sentences for the main job; the table on request."""
    rows = _asked_first(run)
    if not rows:
        return ()
    return (Section(lines=_sentences(rows, run), details=tuple(table_text(rows).splitlines())),)


def _sentences(rows: tuple[CollectiveRow, ...], run: Run) -> tuple[str, ...]:
    """The verdict of every trial: other ranks or another link are another network."""
    trials: dict[str, list[CollectiveRow]] = {}
    for row in rows:
        trials.setdefault(row.trial_id, []).append(row)
    lines: list[str] = []
    for trial in trials.values():
        lines += [
            verdict(tuple(trial)),
            *_against_expectation(tuple(trial), run),
            *_notes_of(trial[0].trial_id, run),
        ]
    return tuple(lines)


def _notes_of(trial_id: str, run: Run) -> list[str]:
    trial = next(result.trial for result in run.results if result.trial_id == trial_id)
    return [f"Note: {surrounding}." for surrounding in context(trial)]


def _pairs_by_trial(run: Run) -> list[tuple[tuple[PairRow, ...], list[str]]]:
    trials = dict.fromkeys(result.trial_id for result in run.results)
    by_trial = [
        (pair_rows(result for result in run.results if result.trial_id == trial), trial) for trial in trials
    ]
    return [(pairs, _notes_of(trial, run)) for pairs, trial in by_trial if pairs]


def verdict(rows: tuple[CollectiveRow, ...]) -> str:
    """The best bandwidth and the latency of the collective that training uses most, over all ranks; both
    are means, as in nccl-tests."""
    rows = tuple(row for row in rows if row.among == "all") or rows
    name = "all_reduce" if any(row.collective == "all_reduce" for row in rows) else rows[0].collective
    of_name = [row for row in rows if row.collective == name]
    best = max(of_name, key=lambda row: row.busbw_bytes_per_s)
    small = min((row for row in of_name if row.ranks == best.ranks), key=lambda row: row.size_bytes)
    ranks = f"{best.ranks} ranks{_nodes_text(best)}"
    text = f"{name} over {ranks} takes {in_us_or_ms(small.time_s)} at {data_size(small.size_bytes)}"
    if best.size_bytes:
        text += (
            f" and reaches {data_rate(best.busbw_bytes_per_s)} bus bandwidth at {data_size(best.size_bytes)}"
        )
    text += " (mean over iterations)"
    waits = [row for row in of_name if (row.wait_s or 0.0) > 0.2 * row.median_s and row.last_rank is not None]
    if len(waits) > len(of_name) / 2:
        text += f"; ranks wait for rank {waits[-1].last_rank}"
    return text + "."


def _nodes_text(row: CollectiveRow) -> str:
    """Where the ranks are, in a run of several nodes."""
    if row.reach == "inside a node":
        return f" of one node ({row.hosts[0]})" if row.among == "one_node" else ""
    return f" on {len(set(row.hosts))} nodes" + (", one each," if row.reach == "between nodes" else "")


def pairs_verdict(run: Run) -> str | None:
    """The slowest and the median pair of ranks; None where pairs were not measured."""
    pairs = pair_rows(run.results)
    if not pairs:
        return None
    across = node_rates(pairs)
    rates = across or {(str(pair.low), str(pair.high)): pair.bytes_per_s for pair in pairs}
    (low, high), slowest = min(rates.items(), key=lambda rate: rate[1])
    if len(rates) == 1:
        names = f"{low} and {high}" if across else f"Ranks {low} and {high}"
        return f"{names} exchange {data_rate(slowest)} in each direction."
    return (
        f"{counted(len(rates), 'pair')} of {'nodes' if across else 'ranks'}: median "
        f"{data_rate(statistics.median(rates.values()))} in each direction, slowest ({low} and {high}) "
        f"{data_rate(slowest)}."
    )


def _reads_nccl_log(result: Result) -> bool:
    return result.trial.purpose == NCCL_LOG


def _nccl_section(run: Run, result: Result) -> Section:
    choices = nccl_choices(run, result)
    lines = [
        f"Transport  : {', '.join(choices.transports) or 'unknown'}",
        f"Network    : {choices.network or 'unknown'}",
        f"Channels   : {choices.channels or 'unknown'}",
        f"Algorithms : {', '.join(choices.algorithms) or 'unknown'}",
    ]
    best = max(
        (
            row
            for row in collective_rows(run.results)
            if row.collective == "all_reduce" and row.ranks == result.trial.world_size
        ),
        key=lambda row: row.busbw_bytes_per_s,
        default=None,
    )
    if best is not None and any("NVLS" in algorithm for algorithm in choices.algorithms):
        # The switch does the sums: a GPU moves S(n+1)/n bytes over its links, not 2S(n-1)/n.
        wire = best.algbw_bytes_per_s * (best.ranks + 1) / best.ranks
        lines.append(
            f"NVLS sums inside the switch: {data_rate(best.busbw_bytes_per_s)} bus bandwidth is "
            f"{data_rate(wire)} on each GPU's links."
        )
    if choices.uses_sockets:
        lines.append("NCCL uses sockets, which are much slower than NVLink, PCIe or InfiniBand.")
    return Section(title=f"What NCCL chose on {result.trial.world_size} ranks", lines=tuple(lines))


def _against_expectation(rows: tuple[CollectiveRow, ...], run: Run) -> tuple[str, ...]:
    """Is the best all-reduce, or whatever there is, what this hardware should give?"""
    compared = [row for row in rows if row.collective == "all_reduce"] or list(rows)
    best = max(compared, key=lambda row: row.busbw_bytes_per_s)
    gpus = run.environment.get("machine", {}).get("gpus") or []
    trial = next(result.trial for result in run.results if result.trial_id == best.trial_id)
    on_gpu = trial.on_gpu and trial.split_gpu is None and gpus
    known = on_gpu and best.reach == "inside a node"  # published figures are of one node
    expectation = expectation_of(best, str(gpus[0]["name"]) if known else None, best.link)
    if expectation is None:
        if not known:
            return ()
        return (f"No published figures are known for {best.ranks}×{gpus[0]['name']}.",)
    share, size = percent(expectation.share), data_size(best.size_bytes)
    return (f"That is {share} of {expectation.of_what} at {size} (source: {expectation.source}).",)


def gate_section(rows: tuple[CollectiveRow, ...], least: float) -> tuple[Section, bool]:
    """Whether every collective's best bus bandwidth reaches `least` bytes per second."""
    best: dict[tuple[str, str], CollectiveRow] = {}
    for row in rows:
        if cards.card("collectives", row.collective).has_data and row.among == "all":
            key = (row.collective, row.trial_id)
            best[key] = max(best.get(key, row), row, key=lambda candidate: candidate.busbw_bytes_per_s)
    missed = [row for row in best.values() if row.busbw_bytes_per_s < least]
    if not best:
        return Section(lines=("Gate failed: no collective that moves data was measured.",)), True
    if not missed:
        return Section(lines=(f"Gate passed: every collective reaches {data_rate(least)}.",)), False
    names = ", ".join(
        f"{row.collective} on {row.ranks} ranks {data_rate(row.busbw_bytes_per_s)}" for row in missed
    )
    return Section(lines=(f"Gate failed: below {data_rate(least)}: {names}.",)), True


def next_after_communication(run: Run) -> str | None:
    """What to do after `comm`."""
    if not run.of_status("ok"):
        return None
    return "scalescope scale shows how this network affects training."


def communication_json(rows: tuple[CollectiveRow, ...]) -> dict[str, list[dict[str, Any]]]:
    """results.json → communication."""
    by_collective: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_collective.setdefault(row.collective, []).append(
            {
                "size_bytes": row.size_bytes,
                "time_s": row.time_s,
                "algbw_bytes_per_s": row.algbw_bytes_per_s,
                "busbw_bytes_per_s": row.busbw_bytes_per_s,
                "wrong": row.wrong,
                "dtype": row.dtype,
                "world_size": row.ranks,
                "in_place": row.in_place,
                "iterations": len(row.times_s),
                "median_s": row.median_s,
                "p95_s": row.quantile_s(0.95),
                "p99_s": row.quantile_s(0.99),
                "cv": row.variation,
                "transfer_s": row.transfer_s,
                "wait_s": row.wait_s,
                "last_rank": row.last_rank,
                "trial_id": row.trial_id,
                "backend": row.backend,
                "link": row.link,
                "split_gpu": row.split_gpu,
                "reach": row.reach,
            }
        )
    return by_collective


def pairs_json(run: Run) -> list[dict[str, Any]]:
    """results.json → pairs."""
    return [
        {
            "ranks": [pair.low, pair.high],
            "nodes": list(pair.nodes),
            "size_bytes": pair.size_bytes,
            "bytes_per_s": pair.bytes_per_s,
        }
        for pairs, _ in _pairs_by_trial(run)
        for pair in pairs
    ]


def curves_json(rows: tuple[CollectiveRow, ...]) -> dict[str, Any]:
    """curve.json: one curve for each collective, type and number of ranks, with its fits."""
    grouped: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in rows:
        if row.size_bytes:
            key = (row.collective, row.trial_id or f"{row.dtype} {row.ranks}")
            grouped.setdefault(key, []).append(row)
    return {
        "schema_version": SCHEMA_VERSION,
        "curves": [
            {
                "collective": members[0].collective,
                "dtype": members[0].dtype,
                "world_size": members[0].ranks,
                "backend": members[0].backend,
                "link": members[0].link,
                "split_gpu": members[0].split_gpu,
                "reach": members[0].reach,
                **_curve([(row.size_bytes, row.median_s) for row in members]),
            }
            for members in grouped.values()
        ],
    }


def _curve(points: list[tuple[int, float]]) -> dict[str, Any]:
    curve = Curve.through(points)
    fits = {"a+bS": fit(curve.points, alpha_beta), "a+bS+c*sqrt(S)": fit(curve.points, with_root)}
    return {
        "points": [[size, time_s] for size, time_s in curve.points],
        "fits": {
            name: None
            if fitted is None
            else {"coefficients": list(fitted.coefficients), "median_relative_error": fitted.median_error}
            for name, fitted in fits.items()
        },
    }


def _pair_section(pairs: tuple[PairRow, ...], notes: list[str]) -> Section:
    """Every two ranks of one node; of several nodes every two nodes, and a line for what is inside each."""
    across = node_rates(pairs)
    if across:
        columns = ("nodes", "per direction")
        rates = [(f"{low} ↔ {high}", rate) for (low, high), rate in across.items()]
    else:
        columns = ("ranks", "per direction")
        rates = [(f"{pair.low} ↔ {pair.high}", pair.bytes_per_s) for pair in pairs]
    cut = len(rates) > _MOST_ROWS
    shown = sorted(rates, key=lambda rate: rate[1])[:_MOST_ROWS] if cut else rates
    rows = tuple((name, data_rate(rate)) for name, rate in shown)
    lines = [f"The slowest {len(rows)} of {len(rates)} are shown; results.json has all."] if cut else []
    lines += _slow_lines(pairs) or [_NO_SLOW_PAIR if len(rates) > 1 else _ONE_PAIR]
    return Section(
        title="Pairs of nodes, all ranks of both at once" if across else "Pairs, both directions at once",
        table=Table(columns=columns, rows=rows),
        lines=(*lines, *(_inside_lines(pairs) if across else ()), *notes),
    )


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
    lines = []
    for node, members in nodes.items():
        slowest = min(members, key=lambda pair: pair.bytes_per_s)
        usual = statistics.median(pair.bytes_per_s for pair in members)
        line = f"Inside {node}: median {data_rate(usual)} in each direction"
        if len(members) > 1:
            line += f", slowest ({slowest.low} and {slowest.high}) {data_rate(slowest.bytes_per_s)}"
        lines.append(line + ".")
    return lines


def _details(rows: tuple[CollectiveRow, ...]) -> tuple[str, ...]:
    lines = []
    for row in rows:
        variant = "in place" if row.in_place else "out of place"
        spread = "unknown" if row.variation is None else percent(row.variation)
        last = "" if row.last_rank is None else f", rank {row.last_rank} usually last"
        lines.append(
            f"{row.collective} {data_size(row.size_bytes)} {variant}: mean {in_us_or_ms(row.time_s)}, "
            f"median {in_us_or_ms(row.median_s)}, p95 {in_us_or_ms(row.quantile_s(0.95))}, "
            f"p99 {in_us_or_ms(row.quantile_s(0.99))}, CV {spread}, "
            f"transfer {in_us_or_ms(row.transfer_s)}, wait {in_us_or_ms(row.wait_s)}{last}"
        )
    return tuple(lines)
