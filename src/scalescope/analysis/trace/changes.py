"""What differs between the traces of two recordings: parts of the step, collectives, operations, kernels."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from scalescope.analysis.trace.job import JobTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity per step, before and after; None where only one recording has it."""

    kind: str  # part, exchange, operation
    name: str
    before_s: float | None
    after_s: float | None
    before_count: float | None = None
    after_count: float | None = None

    @property
    def more_s(self) -> float:
        return (self.after_s or 0.0) - (self.before_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """Two recordings; the changes of each kind, the largest first."""

    before: JobTrace
    after: JobTrace
    parts: tuple[Change, ...]
    exchanges: tuple[Change, ...]
    operations: tuple[Change, ...]

    @property
    def noise_s(self) -> float:
        """How far single steps of either recording are from their mean: less is not a change."""
        spreads = [
            statistics.stdev(times) / len(times) ** 0.5 if len(times := job.step_times_s) > 1 else 0.0
            for job in (self.before, self.after)
        ]
        return 2.0 * math.hypot(*spreads)


def compare_jobs(before: JobTrace, after: JobTrace) -> JobChanges:
    """Match both recordings by name; operations by name and shapes."""
    parts = tuple(
        Change(kind="part", name=part, before_s=before.breakdown[part], after_s=after.breakdown[part])
        for part in before.breakdown
    )
    return JobChanges(
        before=before,
        after=after,
        parts=_ordered(parts),
        exchanges=_matched("exchange", _exchanges(before), _exchanges(after)),
        operations=_matched("operation", _operations(before), _operations(after)),
    )


Counted = Mapping[str, tuple[float, float]]  # by name: seconds and calls per step


def _exchanges(job: JobTrace) -> Counted:
    found: dict[str, tuple[float, float]] = {}
    for group in job.traffic:
        for kind in group.traffic:
            size = "" if group.size is None else f" over {group.size} ranks"
            name = f"{kind.kind.replace('_', '-')}{size}, {group.name}"
            time_s, calls = found.get(name, (0.0, 0.0))
            found[name] = (time_s + kind.time_s, calls + kind.per_step)
    return found


def _operations(job: JobTrace) -> Counted:
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for row in job.first.operations:
        name = f"{row.op} {row.shapes or ''}".strip()
        time_s, calls = found[name]
        found[name] = (time_s + (row.host_s if row.gpu_s is None else row.gpu_s), calls + row.per_step)
    return found


def _matched(kind: str, before: Counted, after: Counted) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    changes = (
        Change(
            kind=kind,
            name=name,
            before_s=before[name][0] if name in before else None,
            after_s=after[name][0] if name in after else None,
            before_count=before[name][1] if name in before else None,
            after_count=after[name][1] if name in after else None,
        )
        for name in names
    )
    return _ordered(tuple(changes))


def _ordered(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: -abs(change.more_s)))
