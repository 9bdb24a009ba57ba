"""Uneven work: batches of some ranks hold more; the others then wait for data, not for a slow rank.

A step lasts as long as the rank with the most work in it. What the others could have saved is the mean over
steps of (most − mean over ranks), times the time per element. That time comes from steps that last longer the
more their largest batch holds; or, where each rank always has the same, from what its computing takes.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.arrivals import RecordedLaunch
from scalescope.analysis.recording import StepRecording
from scalescope.analysis.training.activity import RankActivity
from scalescope.results.traces.step_parts import BACKWARD, COMMUNICATION, FORWARD

_UNEVEN = 0.03  # of the most work that a rank has in a step
_VARIES = 0.02  # between steps
_LEAST_STEPS = 10
_FOLLOWS = 0.4  # rank correlation of step times with the work of the largest batch
_CERTAIN = 4.0  # its t-statistic
_CONSISTENT = 0.4  # of the time that a rank's additional work should take, at least
_BACKWARD_OVER_FORWARD = 2.0

Source = Literal["step times", "recorded steps", "host time"]
_STEPS: Source = "step times"
_RECORDED: Source = "recorded steps"
_HOST: Source = "host time"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenWork:
    """How ranks' work differs, and what that costs per step."""

    unit: Literal["tokens", "elements"]
    by_rank: tuple[float, ...]  # per step
    heaviest: int | None  # the rank that has more than others in the mean; None where they take turns
    excess: float  # of the most work that a rank has in a step, beyond the mean of all ranks
    cost_s: float
    source: Source

    @property
    def most_over_mean(self) -> float:
        """The most work in a step, over the mean of all ranks."""
        return 1.0 / (1.0 - self.excess)

    @property
    def behind_s(self) -> float:
        """By how much the rank with the most work takes longer than a typical other rank."""
        others = len(self.by_rank) - 1
        return self.cost_s * len(self.by_rank) / others


@dataclass(frozen=True, slots=True)
class _Load:
    """Elements per step of each rank, and in each step the most and the mean of all ranks, of a launch."""

    by_rank: tuple[float, ...]
    most: tuple[float, ...]
    mean: tuple[float, ...]
    steps_s: tuple[float, ...]  # of the slowest rank

    @property
    def excess(self) -> float:
        return 1.0 - statistics.fmean(self.mean) / statistics.fmean(self.most)

    @property
    def heaviest(self) -> int | None:
        most = max(self.by_rank)
        differ = 1.0 - statistics.fmean(self.by_rank) / most
        return self.by_rank.index(most) if differ >= _UNEVEN else None


def uneven_work(
    launches: Sequence[Sequence[RankActivity]],
    *,
    recorded: Sequence[RecordedLaunch] = (),
    recording: StepRecording | None = None,
    on_gpu: bool,
) -> UnevenWork | None:
    """What uneven work costs, from the ranks of each launch; None where it is even, or where the times do not
    show it."""
    loads = [load for load in map(_load, launches) if load is not None]
    if not loads or len(loads) < len(launches) or loads[0].excess < _UNEVEN:
        return None
    load, activities = loads[0], launches[0]
    cost_s, source = _by_steps(loads), _STEPS
    if cost_s is None and recorded:
        cost_s, source = _by_compute(load, recorded), _RECORDED
    elif cost_s is None and on_gpu and recording is not None:
        cost_s, source = _by_kernels(load, recording), _RECORDED
    elif cost_s is None and not on_gpu:
        cost_s, source = _by_host(load, activities), _HOST
    if cost_s is None or cost_s <= 0.0:
        return None
    tokens = [a.work.tokens for a in activities if a.work is not None and a.work.tokens is not None]
    are_tokens = len(tokens) == len(activities)
    return UnevenWork(
        unit="tokens" if are_tokens else "elements",
        by_rank=tuple(tokens) if are_tokens else load.by_rank,
        heaviest=load.heaviest,
        excess=load.excess,
        cost_s=cost_s,
        source=source,
    )


def _load(activities: Sequence[RankActivity]) -> _Load | None:
    """None where the work of a rank is unknown."""
    works = [activity.work for activity in activities if activity.work is not None]
    steps_s = tuple(map(max, zip(*(activity.step_times_s for activity in activities), strict=False)))
    if len(works) < 2 or len(works) < len(activities) or not steps_s:
        return None
    count = len(steps_s) if any(work.by_step for work in works) else 1
    series = [work.by_step if len(work.by_step) >= count else (work.elements,) * count for work in works]
    columns = [[rank[step] for rank in series] for step in range(count)]
    return _Load(
        by_rank=tuple(work.elements for work in works),
        most=tuple(map(max, columns)),
        mean=tuple(map(statistics.fmean, columns)),
        steps_s=steps_s[:count],
    )


def _by_steps(loads: Sequence[_Load]) -> float | None:
    """Where steps last longer the more the largest batch holds."""
    most = [work for load in loads for work in load.most]
    steps_s = [step_s for load in loads for step_s in load.steps_s]
    mean = statistics.fmean(most)
    if len(most) < _LEAST_STEPS or statistics.pstdev(most) < _VARIES * mean or len(set(steps_s)) < 2:
        return None
    follows = statistics.correlation(_ranked(most), _ranked(steps_s))
    certainty = follows * ((len(most) - 2) / max(1e-9, 1.0 - follows**2)) ** 0.5
    if follows < _FOLLOWS or certainty < _CERTAIN:
        return None
    per_element_s = min(_slope(most, steps_s), statistics.fmean(steps_s) / mean)
    return per_element_s * (mean - statistics.fmean(work for load in loads for work in load.mean))


def _ranked(values: Sequence[float]) -> list[float]:
    """Each value's place in their order: single stalls do not hide what the other steps show."""
    order: dict[float, list[int]] = {}
    for position, value in enumerate(sorted(values)):
        order.setdefault(value, []).append(position)
    return [statistics.fmean((order[value][0], order[value][-1])) for value in values]


def _slope(most: Sequence[float], steps_s: Sequence[float]) -> float:
    """Seconds per element, from the third of the steps with the least work and that with the most."""
    pairs = sorted(zip(most, steps_s, strict=True))
    third = len(pairs) // 3
    low, high = pairs[:third], pairs[-third:]
    work = statistics.fmean(w for w, _ in high) - statistics.fmean(w for w, _ in low)
    return (statistics.median(t for _, t in high) - statistics.median(t for _, t in low)) / work


def _by_compute(load: _Load, recorded: Sequence[RecordedLaunch]) -> float | None:
    """Where the rank with the most work computes longest in recorded steps."""
    per_launch = [launch.rank_compute_s for launch in recorded]
    compute_s = [statistics.fmean(times_s) for times_s in zip(*per_launch, strict=False)]
    heaviest = load.heaviest
    if heaviest is None or len(compute_s) != len(load.by_rank):
        return None
    behind_s = compute_s[heaviest] - statistics.fmean(compute_s)
    expected_s = load.excess * compute_s[heaviest]
    return min(behind_s, expected_s) if behind_s >= _CONSISTENT * expected_s else None


def _by_kernels(load: _Load, recording: StepRecording) -> float | None:
    """From the time of one rank's kernels; a rank with less work must be seen to wait for the others."""
    heaviest, rank = load.heaviest, recording.rank
    if heaviest is None or rank >= len(load.by_rank):
        return None
    compute_s = sum(recording.parts.get(part, 0.0) for part in (FORWARD, BACKWARD))
    per_element_s = compute_s / load.by_rank[rank]
    waits_s = per_element_s * (load.by_rank[heaviest] - load.by_rank[rank])
    if recording.parts.get(COMMUNICATION, 0.0) < _CONSISTENT * waits_s:
        return None
    return per_element_s * load.excess * max(load.by_rank)


def _by_host(load: _Load, activities: Sequence[RankActivity]) -> float | None:
    """On the CPU, where the rank with the most work takes longest for its forward pass, which never waits."""
    forward_s = [activity.host_s.get("forward") for activity in activities]
    known = [time_s for time_s in forward_s if time_s is not None]
    heaviest = load.heaviest
    if heaviest is None or len(known) < len(activities):
        return None
    behind_s = known[heaviest] - statistics.fmean(known)
    expected_s = load.excess * known[heaviest]
    if behind_s < _CONSISTENT * expected_s:
        return None
    backward_s = activities[heaviest].host_s.get("backward", 0.0)
    computes_s = known[heaviest] + min(backward_s, _BACKWARD_OVER_FORWARD * known[heaviest])
    return min(behind_s, expected_s) / known[heaviest] * computes_s
