"""Pauses: on which ranks, and in which part of the step, the steps of an event are longer.

`analysis/events.py` finds periods. Here they are looked for on each rank, also in the host's time in one part
of the step, where steps are too noisy; and pauses at about equal distances count, which are of a clock.
"""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.events import periods_of
from scalescope.analysis.training.activity import LongStep, RankActivity
from scalescope.results.result import HOST_PARTS, WHOLE_PARTS

_FAR_MADS = 6 * 1.4826  # MAD times 1.4826 estimates a standard deviation
_FAR = 0.2  # of the median, at least
_LEAST_PAUSES = 3
_MISSING = 0.15  # of the expected pauses
_LEAST_JITTERED_PERIOD = 10
_LEAST_JITTERED_PAUSES = 5
_JITTER = 0.1  # of a period that is one of time and not of steps
_MOSTLY = 0.5
_MORE_WORK = 1.2  # times that of other steps: then they are long batches
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

    def has_other_cause(self, workers: int) -> bool:
        """Whether the steps are long for another reason: garbage collection, loader processes that deliver in
        turn, or batches that hold more."""
        by_garbage = self.gc_share is not None and self.gc_share >= _MOSTLY
        by_loader = self.part == "input" and workers > 1 and self.period % workers == 0
        return by_garbage or by_loader or (self.work_ratio is not None and self.work_ratio >= _MORE_WORK)


@dataclass(frozen=True, slots=True)
class _Pause:
    step: int
    excess_s: float


def find_pauses(step_times_s: Sequence[float]) -> Pauses:
    """The pauses among the steps of one rank."""
    return _classified(_pauses(step_times_s), step_times_s)


def _classified(pauses: Sequence[_Pause], times_s: Sequence[float]) -> Pauses:
    """Those that return regularly, and the others; of several periods, the one with most time."""
    steps = len(times_s)
    periods = [
        (period, [pause for pause in pauses if pause.step in members])
        for period, members in (periods_of(tuple(times_s)) if len(pauses) >= _LEAST_PAUSES else ())
    ]
    exact = max(periods, key=lambda found: _sum_s(found[1]), default=None)
    period, regular = exact or _jittered(pauses, steps) or (None, [])
    if not regular:
        period = None
    total_s, regular_s = _sum_s(pauses), _sum_s(regular)
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
    beyond_s = [0.0] * len(activity.step_times_s)
    for row in activity.long_steps or ():
        beyond_s[row.step] = _host_s([row], on_gpu=on_gpu)[part]
    return _classified([_Pause(n, s) for n, s in enumerate(beyond_s) if s > least_s], beyond_s)


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
