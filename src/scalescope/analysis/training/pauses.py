"""Pauses: steps far above a rank's median, and whether they return with a fixed period.

Checkpoints, logging and validation make every k-th step longer. Hiccups of a machine come at random. Where
pauses stand distinguishes the two, not how long they are.
"""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.training.activity import LongStep, RankActivity
from scalescope.results.result import HOST_PARTS, WHOLE_PARTS

_FAR_MADS = 6 * 1.4826  # MAD times 1.4826 estimates a standard deviation
_FAR = 0.2  # of the median, at least
_LEAST_PERIOD = 3  # of every second step neither kind is the usual one
_LEAST_PAUSES = 3
_MOST_CANDIDATES = 30
_NEIGHBOURS = 3  # pauses after each whose distance may be the period
_MISSING = 0.15  # of the expected pauses
_REGULAR = 0.6  # of all pauses, by number and by length
_LEAST_JITTERED_PERIOD = 10
_LEAST_JITTERED_PAUSES = 5
_JITTER = 0.1  # of a period that is one of time and not of steps
_MOSTLY = 0.5
REST = "rest"  # of the host's step: outside input, forward, backward and optimizer
_WAITS = "backward"  # where a rank waits for others


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The pauses of one rank in one launch."""

    period: int | None  # in steps; None where they do not return regularly
    steps: tuple[int, ...]  # of the periodic ones, from 0
    length_s: float  # of a periodic one, beyond a usual step
    cost_s: float  # of the periodic ones, per step of the launch
    other_cost_s: float  # of all others


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicPauses:
    """Pauses that return with one period in most launches."""

    period: int  # in steps
    length_s: float
    cost_s: float  # per step
    other_cost_s: float  # per step, of pauses that come at random
    launches: int  # in which they were found
    origins: tuple[int, ...] = ()  # the ranks on which they begin; empty where that is not known
    part: str | None = None  # of the step, in which the host of these ranks was
    gc_share: float | None = None  # of their time that was garbage collection
    work_ratio: float | None = None  # work in these steps over that of others; None where all have the same


@dataclass(frozen=True, slots=True)
class _Pause:
    step: int
    excess_s: float


def find_pauses(step_times_s: Sequence[float]) -> Pauses:
    """The pauses among the steps of one rank."""
    return _classified(_pauses(step_times_s), len(step_times_s))


def _classified(pauses: Sequence[_Pause], steps: int) -> Pauses:
    """Those that return regularly, and the others."""
    period, regular = _exact(pauses, steps) or _jittered(pauses, steps) or (None, [])
    total_s = sum(pause.excess_s for pause in pauses)
    regular_s = sum(pause.excess_s for pause in regular)
    return Pauses(
        period=period,
        steps=tuple(pause.step for pause in regular),
        length_s=statistics.median(pause.excess_s for pause in regular) if regular else 0.0,
        cost_s=regular_s / steps if steps else 0.0,
        other_cost_s=(total_s - regular_s) / steps if steps else 0.0,
    )


def _pauses(step_times_s: Sequence[float]) -> list[_Pause]:
    """Steps far above the median; several in a row are one pause, at its longest step."""
    if not step_times_s:
        return []
    usual_s = statistics.median(step_times_s)
    # Of shorter steps alone: frequent pauses must not pass for noise.
    deviation_s = statistics.median(usual_s - time_s for time_s in step_times_s if time_s <= usual_s)
    far_s = max(_FAR_MADS * deviation_s, _FAR * usual_s)
    rows: list[list[int]] = []
    for step, time_s in enumerate(step_times_s):
        if time_s - usual_s > far_s:
            if rows and rows[-1][-1] == step - 1:
                rows[-1].append(step)
            else:
                rows.append([step])
    return [
        _Pause(
            max(row, key=lambda step: step_times_s[step]),
            sum(step_times_s[step] - usual_s for step in row),
        )
        for row in rows
    ]


def _exact(pauses: Sequence[_Pause], steps: int) -> tuple[int, list[_Pause]] | None:
    """The period of pauses that stand every k-th step, and those that do; the most time wins."""
    best: tuple[int, list[_Pause]] | None = None
    for period in _candidates(pauses):
        phase, _ = Counter(pause.step % period for pause in pauses).most_common(1)[0]
        regular = [pause for pause in pauses if pause.step % period == phase]
        if _are_regular(regular, pauses, expected=len(range(phase, steps, period))) and (
            best is None or _sum_s(regular) > _sum_s(best[1])
        ):
            best = period, regular
    return best


def _candidates(pauses: Sequence[_Pause]) -> list[int]:
    """Distances between pauses, the most common first."""
    distances = Counter(
        later.step - pause.step
        for number, pause in enumerate(pauses)
        for later in pauses[number + 1 : number + 1 + _NEIGHBOURS]
    )
    common = [distance for distance, _ in distances.most_common() if distance >= _LEAST_PERIOD]
    return common[:_MOST_CANDIDATES]


def _are_regular(regular: Sequence[_Pause], pauses: Sequence[_Pause], *, expected: int) -> bool:
    """Whether so many of the expected pauses are there, and so few others, that it is not by chance."""
    count = len(regular)
    if count < _LEAST_PAUSES:
        return False
    if count == _LEAST_PAUSES:
        return count == expected == len(pauses)
    missing = expected - count
    return (
        missing <= max(1, _MISSING * expected)
        and count >= _REGULAR * len(pauses)
        and _sum_s(regular) >= _REGULAR * _sum_s(pauses)
    )


def _jittered(pauses: Sequence[_Pause], steps: int) -> tuple[int, list[_Pause]] | None:
    """The period of pauses at about equal distances: by a clock, which steps do not keep to exactly."""
    distances = [later.step - pause.step for pause, later in itertools.pairwise(pauses)]
    if len(pauses) < _LEAST_JITTERED_PAUSES:
        return None
    period = round(statistics.median(distances))
    if period < _LEAST_JITTERED_PERIOD:
        return None
    most = period + max(1.0, _JITTER * period)
    others = [distance for distance in distances if not 2 * period - most <= distance <= most]
    covers_launch = pauses[0].step <= most and steps - pauses[-1].step <= most
    if not covers_launch or len(others) > _MISSING * len(distances):
        return None
    return period, list(pauses)


def _sum_s(pauses: Sequence[_Pause]) -> float:
    return sum(pause.excess_s for pause in pauses)


def periodic_pauses(launches: Sequence[Sequence[RankActivity]], *, on_gpu: bool) -> PeriodicPauses | None:
    """What the launches share, from the ranks of each."""
    by_launch = [[_rank_pauses(rank, len(ranks), on_gpu=on_gpu) for rank in ranks] for ranks in launches]
    worst = [max(ranks, key=lambda pauses: pauses.cost_s) for ranks in by_launch if ranks]
    periods = [pauses.period for pauses in worst if pauses.period is not None]
    if not periods:
        return None
    period = round(statistics.median_low(periods))
    alike = [pauses for pauses in worst if _has_period(pauses, period)]
    if len(alike) <= _MOSTLY * len(worst):
        return None
    sources = [_origin(*pair, period, on_gpu=on_gpu) for pair in zip(by_launch, launches, strict=True)]
    origins, part, gc_share = max(sources, key=lambda source: len(source[0]))
    return PeriodicPauses(
        period=period,
        length_s=statistics.median(pauses.length_s for pauses in alike),
        cost_s=sum(pauses.cost_s for pauses in alike) / len(worst),
        other_cost_s=statistics.fmean(pauses.other_cost_s for pauses in worst),
        launches=len(alike),
        origins=origins,
        part=part,
        gc_share=gc_share,
        work_ratio=_work_ratio(by_launch[0], launches[0]),
    )


def _rank_pauses(activity: RankActivity, ranks: int, *, on_gpu: bool) -> Pauses:
    """From the rank's steps; or, where these are too noisy, from the time of its host in a part of them."""
    pauses = find_pauses(activity.step_times_s)
    if pauses.period is not None or not activity.long_steps:
        return pauses
    least_s = _FAR * statistics.median(activity.step_times_s)
    by_part = [_part_pauses(activity, part, least_s, on_gpu=on_gpu) for part in _causing_parts(ranks)]
    best = max(by_part, key=lambda pauses: pauses.cost_s)
    if best.period is None:
        return pauses
    return dataclasses.replace(best, other_cost_s=max(0.0, pauses.other_cost_s - best.cost_s))


def _part_pauses(activity: RankActivity, part: str, least_s: float, *, on_gpu: bool) -> Pauses:
    steps = len(activity.step_times_s)
    beyond = [(row.step, _host_s([row], on_gpu=on_gpu)[part]) for row in activity.long_steps or ()]
    return _classified([_Pause(step, excess_s) for step, excess_s in beyond if excess_s > least_s], steps)


def _causing_parts(ranks: int) -> tuple[str, ...]:
    """Where several ranks exchange gradients, all share a stall: the others wait in their backward pass."""
    return tuple(part for part in (*HOST_PARTS, REST) if ranks == 1 or part != _WAITS)


def _has_period(pauses: Pauses, period: int) -> bool:
    return pauses.period is not None and abs(pauses.period - period) <= _JITTER * period


def _origin(
    pauses_of: Sequence[Pauses], ranks: Sequence[RankActivity], period: int, *, on_gpu: bool
) -> tuple[tuple[int, ...], str | None, float | None]:
    """The ranks of a launch on which pauses begin, the part of the step they are in, and the share of garbage
    collection in them."""
    origins, gc_shares = [], []
    parts_s: Counter[str] = Counter()
    for pauses, activity in zip(pauses_of, ranks, strict=True):
        rows = [row for row in activity.long_steps or () if row.step in pauses.steps]
        total_s = pauses.length_s * len(rows)
        if not _has_period(pauses, period) or total_s <= 0.0:
            continue
        gc_shares.append(sum(row.gc_s for row in rows) / total_s)
        host_s = _host_s(rows, on_gpu=on_gpu)
        causes_s = Counter({part: host_s[part] for part in _causing_parts(len(ranks))})
        if sum(causes_s.values()) >= _MOSTLY * total_s:
            origins.append(activity.rank)
            parts_s.update(causes_s)
    part = parts_s.most_common(1)[0][0] if parts_s else None
    return tuple(origins), part, max(gc_shares, default=None)


def _work_ratio(pauses_of: Sequence[Pauses], ranks: Sequence[RankActivity]) -> float | None:
    """Of the rank whose batches hold most more in these steps than in others."""
    ratios = []
    for pauses, activity in zip(pauses_of, ranks, strict=True):
        works = () if activity.work is None else activity.work.by_step
        inside = [works[step] for step in pauses.steps if step < len(works)]
        outside = [work for step, work in enumerate(works) if step not in pauses.steps]
        if inside and outside:
            ratios.append(statistics.fmean(inside) / statistics.fmean(outside))
    return max(ratios, default=None)


def _host_s(rows: Sequence[LongStep], *, on_gpu: bool) -> dict[str, float]:
    """Where the host was. On a GPU the step is the device's, so what lies outside all parts is unknown, as in
    a workload's own step, whose parts are not recorded."""
    host_s = {part: sum(max(0.0, row.parts_s.get(part, 0.0)) for row in rows) for part in HOST_PARTS}
    rest_s = sum(max(0.0, row.beyond_s - sum(row.parts_s.values())) for row in rows)
    is_whole = any(tuple(row.parts_s) == WHOLE_PARTS for row in rows)
    return {**host_s, REST: 0.0 if on_gpu or is_whole else rest_s}
