"""The loss waterfall in words, as bars of text, and as plain data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from scalescope.analysis.commands import batch_text
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
    COMMUNICATION,
    NOT_SEPARATED,
    NOT_SIGNIFICANT,
    Segment,
    Term,
    Waterfall,
)
from scalescope.analysis.scaling.whole_step import WholePart, WholeStep, whole_step
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.step_facts import StepFacts
from scalescope.experiment.explanations import without_communication
from scalescope.report.numbers import in_ms, range_ms
from scalescope.report.section import Section, Table

_INTERVAL = "95 % interval"
_BAR_WIDTH = 30
_WORTH_A_WORD = 0.02  # of the ranks; smaller terms without an interval are in the table alone
_SHOWN_PART = 0.0005  # of a step
_SHOWN = 0.005  # less is zero in two decimals


def waterfall_sections(rows: tuple[ScalingRow, ...], steps: Sequence[StepFacts] = ()) -> tuple[Section, ...]:
    """Where the speed goes at the largest world size: the worst batch in full, others in a sentence. It
    continues from one rank's step where `steps` has its parts."""
    most = max((row.ranks for row in rows), default=1)
    there = [row.waterfall for row in rows if row.ranks == most and row.waterfall is not None]
    shown = [waterfall for waterfall in there if _is_measured(waterfall)]
    if not shown:
        return ()
    worst = max(shown, key=lambda waterfall: waterfall.lost)
    others = tuple(sentence(waterfall) for waterfall in shown if waterfall is not worst)
    return (waterfall_section(worst, whole_of(worst, steps)), *((Section(lines=others),) if others else ()))


def whole_of(waterfall: Waterfall, steps: Sequence[StepFacts]) -> WholeStep | None:
    """The whole step behind a waterfall; None where the parts of one rank's step are not known."""
    return whole_step(waterfall, [facts.waterfall for facts in steps if facts.waterfall is not None])


def _is_measured(waterfall: Waterfall) -> bool:
    """Whether what it takes was measured, as far as the strategy allows."""
    communication = waterfall.term(COMMUNICATION)
    return without_communication(waterfall.trial) is None or (
        communication is not None and communication.time_s is not None
    )


def sentence(waterfall: Waterfall) -> str:
    """`4 ranks deliver 1.83× (weak); 2.17 lost: 1.90 communication, 0.27 not significant.`"""
    what = f"{waterfall.trial.mode}, {batch_text(waterfall.trial, waterfall.trial.rank_batch_size)} per rank"
    text = f"{waterfall.ranks} ranks deliver {waterfall.delivered:.2f}× ({what})"
    lost = waterfall.lost
    balance = f"{in_ranks(abs(lost))} {'lost' if lost > 0.0 else 'more than the ideal'}"
    terms = sentence_segments(waterfall)
    if not terms:
        return f"{text}; {balance}, none of it significant."
    rest = [part for part in waterfall.segments if part.name == NOT_SIGNIFICANT and abs(part.value) >= _SHOWN]
    words = [f"{in_ranks(part.value)} {_name_in_sentence(part, waterfall)}" for part in (*terms, *rest)]
    single = any(part.significance == "no_interval" for part in terms)
    return f"{text}; {balance}: {', '.join(words)}{' (one launch, no intervals)' if single else ''}."


def sentence_segments(waterfall: Waterfall) -> tuple[Segment, ...]:
    """What a sentence names: significant terms, the largest first, then what was not separated. Of terms
    without an interval those that are worth a word."""
    segments = waterfall.segments[1:]
    least = _WORTH_A_WORD * waterfall.ranks
    named = [
        part
        for part in segments
        if part.significance == "significant"
        or (part.significance == "no_interval" and abs(part.value) > least)
    ]
    unknown = [part for part in segments if part.significance == "not_measured"]
    return (*sorted(named, key=lambda part: -abs(part.value)), *unknown)


def _name_in_sentence(segment: Segment, waterfall: Waterfall) -> str:
    """What is not separated: one term, or several that were not measured one by one."""
    names = segment.terms
    if segment.name != NOT_SEPARATED or not names:
        return named_with_parts(segment, waterfall)
    if len(names) == 1:
        return f"{names[0]} (the remainder)"
    return f"not separable into {', '.join(names[:-1])} and {names[-1]}"


def named_with_parts(segment: Segment, waterfall: Waterfall) -> str:
    """`communication with random skew`: the term, and what could not be separated from it."""
    term = waterfall.term(segment.name)
    if term is None or not term.includes:
        return segment.name
    if term.name == BETWEEN_RANKS:  # it is nothing but these
        return f"{segment.name} ({', '.join(term.includes)})"
    return f"{segment.name} with {' and '.join(term.includes)}"


def in_ranks(value: float) -> str:
    """`0.27`, `−0.04`: ranks' worth of speed; what is not zero is not shown as zero."""
    if 0.0 < abs(value) < _SHOWN:
        return "< 0.01" if value > 0.0 else "> −0.01"
    return f"−{-value:.2f}" if value < 0.0 else f"{value:.2f}"


def waterfall_section(waterfall: Waterfall, whole: WholeStep | None = None) -> Section:
    """The bar as a table, one row per segment, and its total; below what is delivered, one rank's step."""
    delivered, *lost = (_row(segment, waterfall) for segment in waterfall.segments)
    total = ("total", "", in_ranks(waterfall.ranks), in_ms(waterfall.step_s), "")
    table = Table(
        columns=("where the speed goes", "", f"of {waterfall.ranks} ranks", "time per step", _INTERVAL),
        rows=(delivered, *_rows_of_one_rank(whole), *lost, total),
        left=frozenset(("where the speed goes", "")),
        optional=(_INTERVAL, ""),
    )
    return Section(
        title=sentence(waterfall),
        table=table,
        lines=(*_where_it_is_lost(whole), *_what_is_together(waterfall)),
        details=(
            *_not_significant(waterfall),
            *_split(waterfall),
            *_hook(waterfall),
            _simple_reading(waterfall),
            *_late(waterfall),
        ),
    )


def _row(segment: Segment, waterfall: Waterfall) -> tuple[str, ...]:
    return (
        named_with_parts(segment, waterfall),
        _bar(segment, waterfall.ranks),
        in_ranks(segment.value),
        in_ms(segment.value * waterfall.step_s / waterfall.ranks),
        _interval_of(segment, waterfall),
    )


def _bar(segment: Segment, ranks: int) -> str:
    return _blocks(segment.value / ranks, "▒" if segment.significance == "not_significant" else "█")


def _blocks(share: float, block: str) -> str:
    length = round(_BAR_WIDTH * abs(share))
    return ("−" if share < 0.0 and length else "") + block * length


def _rows_of_one_rank(whole: WholeStep | None) -> list[tuple[str, ...]]:
    """What the delivered part consists of: the parts of one rank's step, in the same units."""
    return [] if whole is None else [_row_of_one_rank(part, whole) for part in visible_parts(whole)]


def visible_parts(whole: WholeStep) -> tuple[WholePart, ...]:
    """The parts of one rank's step that are not zero in every column."""
    least = _SHOWN_PART * whole.step_s
    return tuple(part for part in whole.parts_of("one_rank") if abs(part.time_s.value) >= least)


def _row_of_one_rank(part: WholePart, whole: WholeStep) -> tuple[str, ...]:
    time_s = part.time_s
    share = time_s.value / whole.step_s
    interval = _interval(time_s) if time_s.has_interval else ""
    ranks = in_ranks(share * whole.waterfall.ranks)
    return f"· {part.name}", _blocks(share, "░"), ranks, in_ms(time_s.value), interval


def _where_it_is_lost(whole: WholeStep | None) -> tuple[str, ...]:
    """`Lost before the second rank: … Lost by more ranks: …`"""
    if whole is None:
        return ()
    ranks = whole.waterfall.ranks
    step = "one rank's step" if whole.waterfall.trial.mode == "weak" else f"1/{ranks} of one rank's step"
    added = f"Lost by more ranks: {in_ms(whole.lost_by_ranks_s)} of {in_ms(whole.step_s)} per step."
    if whole.ideal_s is None or whole.lost_before_s is None:
        return (f"· marks the parts of {step} ({in_ms(whole.one_rank_s)}). {added}",)
    return (
        f"· marks the parts of {step} ({in_ms(whole.one_rank_s)}). Lost before the second rank: "
        f"{in_ms(whole.lost_before_s)}, as the ideal is {in_ms(whole.ideal_s)}. {added}",
    )


def _interval_of(segment: Segment, waterfall: Waterfall) -> str:
    if segment.significance == "not_significant":
        return "includes zero"
    term = waterfall.term(segment.name)
    return "" if term is None or term.time_s is None else _interval(term.time_s)


def _what_is_together(waterfall: Waterfall) -> tuple[str, ...]:
    """What the rows hold that stand for several terms, and why terms are unknown."""
    lines = [
        f"Not significant, because the interval includes zero: {', '.join(segment.terms)}."
        for segment in waterfall.segments
        if segment.name == NOT_SIGNIFICANT
    ]
    if waterfall.source == "trace":
        lines.append("The terms come from recorded steps, not from ablations: the profiler slows steps.")
    lines += [
        f"Not separable: {', '.join(dict.fromkeys((*_without_between(term), *term.includes)))}: "
        f"{term.merged_because}."
        for term in waterfall.terms
        if term.merged_because is not None and term.includes
    ]
    reasons: dict[str, list[str]] = {}
    for term in waterfall.terms_that_are("not_measured"):
        reasons.setdefault(term.reason or "not measured", []).append(term.name)
    return (*lines, *(f"Unknown: {', '.join(names)}: {reason}." for reason, names in reasons.items()))


def _without_between(term: Term) -> tuple[str, ...]:
    return () if term.name == BETWEEN_RANKS else (term.name,)


def _not_significant(waterfall: Waterfall) -> tuple[str, ...]:
    return tuple(
        f"{term.name}: {in_ranks(term.lost.value)} of {waterfall.ranks} ranks, {in_ms(term.time_s.value)} "
        f"per step, {_INTERVAL} {_interval(term.time_s)}."
        for term in waterfall.terms_that_are("not_significant")
        if term.lost is not None and term.time_s is not None
    )


def _interval(time_s: Estimate) -> str:
    if time_s.low is None or time_s.high is None:
        return "none (one launch)"
    return range_ms(time_s.low, time_s.high)


def _simple_reading(waterfall: Waterfall) -> str:
    communication = waterfall.term(COMMUNICATION)
    difference = ""
    if communication is not None and communication.time_s is not None:
        difference = f"; communication is {in_ms(communication.time_s.value)}"
    return (
        f"T_multi − T_single is {in_ms(waterfall.simple_comm_s.value)}{difference}. T_multi − T_single also "
        "contains wrapper overhead, contention, stragglers and random skew; neither contains communication "
        "that is hidden behind compute."
    )


def _split(waterfall: Waterfall) -> tuple[str, ...]:
    """What communication consists of, where a trace tells."""
    split = waterfall.split
    if split is None:
        return ()
    exposed, slowed = split.exposed_s, split.slowed_compute_s
    return (
        f"Of communication, by recorded steps: {in_ms(exposed.value)} per step exposed "
        f"({_interval(exposed)}); the rest, {in_ms(slowed.value)}, is compute that communication slows "
        f"({_interval(slowed)}).",
    )


def _hook(waterfall: Waterfall) -> tuple[str, ...]:
    """What the ablation itself adds to a step: communication is underestimated by this."""
    if waterfall.hook_s is None:
        return ()
    cost = in_ms(waterfall.hook_s)
    return (f"The hook that replaces communication takes {cost} per step, which normal ranks do not.",)


def _late(waterfall: Waterfall) -> tuple[str, ...]:
    late = waterfall.straggler
    if late is None:
        return ()
    if not late.persistent:
        return (f"No rank was significantly the slowest; rank {late.rank} was on average.",)
    return (f"Rank {late.rank} was the slowest in all launches, by {in_ms(late.time_s)} per step.",)


def waterfall_json(waterfall: Waterfall) -> dict[str, Any]:
    """The same as plain data: times of a step and ranks' worth of speed."""
    late = waterfall.straggler
    return {
        "delivered": waterfall.delivered,
        "lost": waterfall.lost,
        "step_time_s": waterfall.step_s,
        "ideal_step_time_s": waterfall.ideal_s,
        "terms": [
            {
                "name": term.name,
                "time_s": None if term.time_s is None else term.time_s.value,
                "ci95_time_s": None if term.time_s is None else term.time_s.bounds,
                "lost": None if term.lost is None else term.lost.value,
                "ci95_lost": None if term.lost is None else term.lost.bounds,
                "significance": term.significance,
                "unknown_because": term.reason,
                "includes": list(term.includes),
                "merged_because": term.merged_because,
            }
            for term in waterfall.terms
        ],
        "segments": [dataclasses.asdict(segment) for segment in waterfall.segments],
        "method": waterfall.source,
        "communication_parts": _split_json(waterfall),
        "hook_s": waterfall.hook_s,
        "unexplained_s": waterfall.unexplained_s,
        "simple_comm_s": waterfall.simple_comm_s.value,
        "slowest_rank": None
        if late is None
        else {"rank": late.rank, "time_s": late.time_s, "persistent": late.persistent},
    }


def whole_step_json(whole: WholeStep | None) -> dict[str, Any] | None:
    """The step of N ranks in parts, those of one rank first, in seconds per step."""
    if whole is None:
        return None
    return {
        "step_time_s": whole.step_s,
        "one_rank_s": whole.one_rank_s,
        "ideal_s": whole.ideal_s,
        "lost_before_second_rank_s": whole.lost_before_s,
        "lost_by_more_ranks_s": whole.lost_by_ranks_s,
        "parts": [
            {
                "name": part.name,
                "origin": part.origin,
                "time_s": part.time_s.value,
                "ci95_time_s": None if part.time_s is None else part.time_s.bounds,
            }
            for part in whole.parts
        ],
    }


def _split_json(waterfall: Waterfall) -> dict[str, Any] | None:
    split = waterfall.split
    if split is None:
        return None
    return {
        "exposed_s": split.exposed_s.value,
        "ci95_exposed_s": split.exposed_s.bounds,
        "slowed_compute_s": split.slowed_compute_s.value,
        "ci95_slowed_compute_s": split.slowed_compute_s.bounds,
    }
