"""The loss waterfall in words, as bars of text, and as plain data."""

from typing import Any

from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.waterfall import EXPOSED, Term, Waterfall
from scalescope.analysis.statistics import Estimate
from scalescope.experiment.ablations import without_communication
from scalescope.report.numbers import in_ms, range_ms
from scalescope.report.section import Section, Table

_INTERVAL = "95 % interval"
_BAR_WIDTH = 30
_WORTH_A_WORD = 0.02  # of the ranks; smaller terms are in the table alone


def waterfall_sections(rows: tuple[ScalingRow, ...]) -> tuple[Section, ...]:
    """Where the speed goes at the largest world size: the worst batch in full, others in a sentence."""
    most = max((row.ranks for row in rows), default=1)
    there = [row.waterfall for row in rows if row.ranks == most and row.waterfall is not None]
    shown = [waterfall for waterfall in there if _is_measured(waterfall)]
    if not shown:
        return ()
    worst = max(shown, key=lambda waterfall: waterfall.lost)
    others = tuple(sentence(waterfall) for waterfall in shown if waterfall is not worst)
    return (_section(worst), *((Section(lines=others),) if others else ()))


def _is_measured(waterfall: Waterfall) -> bool:
    """Whether what it takes was measured, as far as the strategy allows."""
    exposed = waterfall.term(EXPOSED)
    return without_communication(waterfall.trial) is None or (
        exposed is not None and exposed.time_s is not None
    )


def sentence(waterfall: Waterfall) -> str:
    """`4 ranks deliver 1.83× (weak); 2.17 lost: 1.60 exposed communication, 0.30 input.`"""
    what = f"{waterfall.trial.mode}, batch {waterfall.trial.rank_batch_size:,} per rank"
    text = f"{waterfall.ranks} ranks deliver {waterfall.delivered:.2f}× ({what})"
    if waterfall.lost <= 0.0:
        return f"{text}: nothing is lost."
    costs = sorted(
        ((term.lost.value, term.name) for term in waterfall.terms if term.lost is not None), reverse=True
    )
    named = [(lost, name) for lost, name in costs if abs(lost) > _WORTH_A_WORD * waterfall.ranks]
    words = [f"{lost:.2f} {name}".replace("-", "−", 1) for lost, name in named]
    unknown = [term.name for term in waterfall.terms if term.time_s is None]
    if unknown:
        rest = waterfall.unexplained_s * waterfall.ranks / waterfall.step_s
        words.append(f"{rest:.2f} {_unseparated(unknown)}")
    return f"{text}; {waterfall.lost:.2f} lost: {', '.join(words) or 'in small parts'}."


def _unseparated(names: list[str]) -> str:
    """What the rest consists of: one term, or several that were not measured one by one."""
    if len(names) == 1:
        return f"{names[0]} (the remainder)"
    return f"not separable into {', '.join(names[:-1])} and {names[-1]}"


def _section(waterfall: Waterfall) -> Section:
    bar, ideal = _bar(waterfall.delivered, waterfall.ranks), in_ms(waterfall.ideal_s)
    rows = [
        ("delivered", bar, f"{waterfall.delivered:.2f}", ideal, ""),
        *(_row(term, waterfall) for term in waterfall.terms),
    ]
    table = Table(
        columns=("where the speed goes", "", f"of {waterfall.ranks} ranks", "time per step", _INTERVAL),
        rows=tuple(rows),
        left=frozenset(("where the speed goes", "")),
        optional=(_INTERVAL, ""),
    )
    return Section(
        title=sentence(waterfall), table=table, details=(_simple_reading(waterfall), *_late(waterfall))
    )


def _row(term: Term, waterfall: Waterfall) -> tuple[str, ...]:
    if term.time_s is None or term.lost is None:
        return (term.name, "", "unknown", "unknown", term.reason or "")
    return (
        term.name,
        _bar(term.lost.value, waterfall.ranks),
        f"{round(term.lost.value, 2) + 0.0:.2f}".replace("-", "−"),
        in_ms(term.time_s.value),
        _interval(term.time_s),
    )


def _bar(share: float, ranks: int) -> str:
    return "█" * max(0, round(_BAR_WIDTH * share / ranks))


def _interval(time_s: Estimate) -> str:
    if time_s.low is None or time_s.high is None:
        return "none (one launch)"
    return range_ms(time_s.low, time_s.high)


def _simple_reading(waterfall: Waterfall) -> str:
    exposed = waterfall.term(EXPOSED)
    difference = ""
    if exposed is not None and exposed.time_s is not None:
        difference = f"; exposed communication is {in_ms(exposed.time_s.value)}"
    return (
        f"T_multi − T_single is {in_ms(waterfall.simple_comm_s.value)}{difference}. T_multi − T_single also "
        "contains wrapper overhead, contention and stragglers; neither contains communication that is hidden "
        "behind compute."
    )


def _late(waterfall: Waterfall) -> tuple[str, ...]:
    late = waterfall.straggler
    if late is None:
        return ()
    often = "in every launch" if late.persistent else "most often"
    return (f"Rank {late.rank} was the slowest {often}, by {in_ms(late.time_s)} per step.",)


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
                "ci95_time_s": _pair(term.time_s),
                "lost": None if term.lost is None else term.lost.value,
                "ci95_lost": _pair(term.lost),
                "unknown_because": term.reason if term.time_s is None else None,
            }
            for term in waterfall.terms
        ],
        "unexplained_s": waterfall.unexplained_s,
        "simple_comm_s": waterfall.simple_comm_s.value,
        "slowest_rank": None
        if late is None
        else {"rank": late.rank, "time_s": late.time_s, "persistent": late.persistent},
    }


def _pair(estimate: Estimate | None) -> list[float | None] | None:
    return [estimate.low, estimate.high] if estimate is not None and estimate.has_interval else None
