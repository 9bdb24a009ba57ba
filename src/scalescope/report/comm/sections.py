"""What `comm` shows: curves, pairs of ranks and what explains them."""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.collectives import CollectiveRow, collective_rows
from scalescope.analysis.comm.curve import Curve, alpha_beta, fit, with_root
from scalescope.analysis.comm.expected import (
    Expectation,
    UnknownRate,
    expectation_of,
    expected_busbw,
    link_ends,
)
from scalescope.analysis.comm.nccl_log import logged_launches, nccl_choices
from scalescope.analysis.comm.pairs import PairRow, node_rates, pair_rows, slow_links
from scalescope.catalog.collectives import collective_named
from scalescope.experiment.trial import Trial
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.caveats import context_notes
from scalescope.report.comm.nccl_tests import table_text
from scalescope.report.numbers import counted, data_rate, data_size, in_us_or_ms, percent
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.results.result import SCHEMA_VERSION, Result
from scalescope.results.run import Run
from scalescope.results.run_commands import PROGRAM, flags_of

# ---- Pairs of ranks and of nodes: their table, the slow ones among them, and the same as data


Rates = dict[tuple[str, str], float]  # by the two ends
_NO_SLOW_PAIR = "No pair is slower than the others."
_NO_SLOW_PAIR_OF_A_KIND = "No pair is slower than the others with the same kind of path."
_ONE_PAIR = "Only one pair exists, so there is nothing to compare it with."
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


# ---- The sections of `comm`: nccl-tests' table, a sentence, what NCCL chose, and the curves as data


_ONE_CORE = (
    "Each rank has one core for compute and for gloo's thread: a small exchange may wait until the scheduler "
    "switches between them."
)


def communication_sections(run: Run) -> tuple[Section, ...]:
    """A sentence per trial, then the table of nccl-tests, then what NCCL chose and the pairs."""
    rows = _asked_first(run)
    shown = []
    if rows:
        shown.append(Section(lines=_sentences(rows, run)))
        shown.append(Section(lines=tuple(table_text(rows).splitlines()), details=_details(rows)))
    shown += [_nccl_section(run, result) for result in _logged_once(run)]
    shown += pair_sections(run)
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
            *_expectation_lines(tuple(trial), run),
            *_modes_of(tuple(trial), run),
            *context_notes(_trial_of(trial[0].trial_id, run)),
        ]
    return tuple(lines)


def _modes_of(rows: tuple[CollectiveRow, ...], run: Run) -> list[str]:
    """Which times fall into two groups, by the clearest of them, and a likely cause."""
    split = [(row, row.modes) for row in rows if row.modes is not None]
    if not split:
        return []
    row, modes = max(split, key=lambda pair: pair[1].slow_s / pair[1].fast_s)
    line = (
        f"Two modes at {counted(len(split), 'size')}: {row.collective} of {data_size(row.size_bytes)} takes "
        f"{in_us_or_ms(modes.fast_s)} or {in_us_or_ms(modes.slow_s)} ({percent(modes.slow_share)} of "
        "iterations)."
    )
    return [line, _ONE_CORE] if _trial_of(row.trial_id, run).gloo_shares_core else [line]


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
    waits = [row for row in of_name if (row.wait_s or 0.0) > 0.2 * row.time_s and row.last_rank is not None]
    if len(waits) > len(of_name) / 2:
        text += f"; ranks wait for rank {waits[-1].last_rank}"
    return text + "."


def _trial_of(trial_id: str, run: Run) -> Trial:
    return next(result.trial for result in run.results if result.trial_id == trial_id)


def _nodes_text(row: CollectiveRow) -> str:
    """Where the ranks are, in a run of several nodes."""
    if row.reach == "inside a node":
        return f" of one node ({row.hosts[0]})" if row.among == "one_node" else ""
    return f" on {len(set(row.hosts))} nodes" + (", one each," if row.reach == "between nodes" else "")


def _logged_once(run: Run) -> list[Result]:
    """Of every group of ranks, the first launch that left NCCL's log."""
    groups: dict[tuple[int, str], Result] = {}
    for result in logged_launches(run):
        groups.setdefault((result.trial.world_size, result.trial.ranks_among), result)
    return list(groups.values())


def _nccl_section(run: Run, result: Result) -> Section:
    choices = nccl_choices(run, result)
    lines = [
        f"Transport  : {', '.join(choices.transports) or 'unknown'}",
        f"Network    : {choices.network or 'unknown'}",
        f"Channels   : {choices.channels or 'unknown'}",
        f"Algorithms : {', '.join(choices.algorithms) or 'unknown'}",
    ]
    if choices.uses_gpudirect is not None:
        used = choices.used_nics.items()
        lines += [f"Cards      : {', '.join(names)} on {host}" for host, names in used]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRate:
    """The best row of a trial, what it should reach, and what is not known where that is unknown."""

    best: CollectiveRow
    expectation: Expectation | None
    missing: str | None


def against_expectation(rows: tuple[CollectiveRow, ...], run: Run) -> ComparedRate:
    """Is the best all-reduce, or whatever there is, what this hardware should give?"""
    compared = [row for row in rows if row.collective == "all_reduce"] or list(rows)
    best = max(compared, key=lambda row: row.busbw_bytes_per_s)
    result = next(result for result in run.results if result.trial_id == best.trial_id)
    trial = result.trial
    ends = link_ends(run.environment, result.ranks)
    names = {end.gpu_name for end in ends}
    gpu = names.pop() if len(names) == 1 and trial.split_gpu is None and trial.on_gpu else None
    by_links = expected_busbw(trial, ends, [best.size_bytes])
    expectation = expectation_of(best, gpu, best.link, by_links)
    missing = None
    if expectation is None and trial.on_gpu and trial.split_gpu is None:
        missing = by_links.missing if isinstance(by_links, UnknownRate) else "smaller messages"
    return ComparedRate(best=best, expectation=expectation, missing=missing)


def _expectation_lines(rows: tuple[CollectiveRow, ...], run: Run) -> tuple[str, ...]:
    compared = against_expectation(rows, run)
    expectation = compared.expectation
    if expectation is None:
        if compared.missing is None:
            return ()
        return (f"Not compared with what the hardware should deliver; unknown: {compared.missing}.",)
    share, size = percent(expectation.share), data_size(compared.best.size_bytes)
    return (f"That is {share} of {expectation.of_what} at {size} (source: {expectation.source}).",)


def gate_section(rows: tuple[CollectiveRow, ...], least: float) -> tuple[Section, bool]:
    """Whether every collective's best bus bandwidth reaches `least` bytes per second."""
    best: dict[tuple[str, str], CollectiveRow] = {}
    for row in rows:
        if collective_named(row.collective).has_data and row.among == "all":
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


def next_after_communication(run: Run) -> ShownCommand | None:
    """What to do after `comm`: training on the same ranks and links."""
    measured = [result.trial for result in run.of_status("ok")]
    if not measured:
        return None
    trial = max(measured, key=lambda trial: trial.world_size)
    placement = {"env": trial.env, "link": trial.link, "split_gpu": trial.split_gpu}
    placed = {name: value for name, value in placement.items() if value}
    ranks = {"world_size": (1, trial.world_size), "device": trial.device}
    argv = (PROGRAM, "scale", *flags_of({**ranks, **placed}))
    return ShownCommand(label="how this network affects training", argv=argv)


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
                "p5_s": row.quantile_s(0.05),
                "median_s": row.median_s,
                "p95_s": row.quantile_s(0.95),
                "p99_s": row.quantile_s(0.99),
                "cv": row.variation,
                "two_modes": None if row.modes is None else dataclasses.asdict(row.modes),
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
                **_curve([(row.size_bytes, row.time_s) for row in members]),
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


def _details(rows: tuple[CollectiveRow, ...]) -> tuple[str, ...]:
    lines = []
    for row in rows:
        variant = "in place" if row.in_place else "out of place"
        spread = "unknown" if row.variation is None else percent(row.variation)
        last = "" if row.last_rank is None else f", rank {row.last_rank} usually last"
        lines.append(
            f"{row.collective} {data_size(row.size_bytes)} {variant}: mean {in_us_or_ms(row.time_s)}, "
            f"p5 {in_us_or_ms(row.quantile_s(0.05))}, median {in_us_or_ms(row.median_s)}, "
            f"p95 {in_us_or_ms(row.quantile_s(0.95))}, p99 {in_us_or_ms(row.quantile_s(0.99))}, CV {spread}, "
            f"transfer {in_us_or_ms(row.transfer_s)}, wait {in_us_or_ms(row.wait_s)}{last}"
        )
    return tuple(lines)


# ---- What a measured network means for training: `comm` explained


_PARAMETERS = {"10 million": 10_000_000, "124 million": 124_000_000, "1 billion": 1_000_000_000}
_BYTES = 4  # of a gradient in fp32
_LARGE_BYTES = 4 << 20  # from here on the rate hardly changes with the size
_GOOD = 0.8  # of what was expected
_MOSTLY_LATENCY = 2.0  # times the smallest message's time


def communication_explanation(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """How fast, how far from what was expected, and what that means for gradients of common models."""
    meanings = [
        line
        for rows in _all_reduces(analyzed.collectives)
        for line in (*_distance(rows, analyzed.run), *_meaning(rows))
    ]
    meaning = (Section(title="What that means for training", lines=tuple(meanings)),) if meanings else ()
    return (*communication_brief(analyzed.run), *meaning)


def _all_reduces(rows: Iterable[CollectiveRow]) -> list[list[CollectiveRow]]:
    """The all-reduces over all ranks, by trial."""
    trials: dict[str, list[CollectiveRow]] = {}
    for row in rows:
        if row.collective == "all_reduce" and row.size_bytes and row.among == "all":
            trials.setdefault(row.trial_id, []).append(row)
    return list(trials.values())


def _distance(rows: list[CollectiveRow], run: Run) -> list[str]:
    """What a rate far from the expected one means; nothing where it is near, or nothing is expected."""
    expectation = against_expectation(tuple(rows), run).expectation
    if expectation is None or expectation.share >= _GOOD:
        return []
    return [
        f"On {counted(rows[0].ranks, 'rank')}, the network delivers {percent(expectation.share)} of what is "
        f"expected, so exchanges take {1.0 / expectation.share:.1f} times as long as they should. scalescope "
        "check shows links, cards and variables that are set up wrongly."
    ]


def _meaning(rows: list[CollectiveRow]) -> list[str]:
    curve = Curve.through([(row.size_bytes, row.time_s) for row in rows])
    ranks = counted(rows[0].ranks, "rank")
    smallest_s = curve.points[0][1]
    flat = [size for size, time_s in curve.points if time_s <= _MOSTLY_LATENCY * smallest_s]
    lines = [
        f"On {ranks}, messages up to {data_size(flat[-1])} take about as long as the smallest "
        f"({in_us_or_ms(smallest_s)}): for them latency counts, and fewer, larger messages are faster."
    ]
    largest, largest_s = curve.points[-1]
    if largest < _LARGE_BYTES:
        lines.append(
            f"The largest message was {data_size(largest)}; gradients of most models are larger: --max-bytes "
            "256M measures what they take."
        )
        return lines
    times = [
        f"{in_us_or_ms(largest_s * parameters * _BYTES / largest)} for {name}"
        for name, parameters in _PARAMETERS.items()
    ]
    lines.append(
        f"Gradients in fp32 take per step, by the rate at {data_size(largest)}: {', '.join(times)} "
        "parameters (estimates). Compute that takes longer than that can hide them; shorter compute cannot."
    )
    return lines
