"""Several runs of one job on other machines or links, side by side: how each scales, and why they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.experiment.explanations import LENGTH, NO_INFLUENCE, job_key
from scalescope.experiment.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run's row, and what it delivers less than the first run of its group, in ranks' worth of speed."""

    run: int  # its number among the runs
    row: ScalingRow
    behind: float | None = None
    behind_by_exposed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The same job on the same number of ranks in several runs, in the order of the runs."""

    members: tuple[RunRow, ...]

    @property
    def first(self) -> ScalingRow:
        return self.members[0].row


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRows:
    """All rows of all runs: those that several runs have, and those that a single run has."""

    groups: tuple[JobGroup, ...]
    alone: tuple[RunRow, ...]


def side_by_side(runs: Sequence[Sequence[ScalingRow]]) -> MatchedRows:
    """Group the rows of all runs by their job, in the order in which jobs appear."""
    jobs: dict[str, list[tuple[int, ScalingRow]]] = {}
    for number, rows in enumerate(runs):
        for row in rows:
            jobs.setdefault(_job_of(row.trial), []).append((number, row))
    groups, alone = [], []
    for same in jobs.values():
        if len({number for number, _ in same}) > 1:
            groups.append(JobGroup(members=tuple(_run_row(number, row, same[0][1]) for number, row in same)))
        else:
            alone += [RunRow(run=number, row=row) for number, row in same]
    return MatchedRows(groups=tuple(groups), alone=tuple(alone))


def _job_of(trial: Trial) -> str:
    """What must be equal: the work and its spread, not where and how long it ran."""
    placement = {setting.name for setting in settings_of(Placement)} - {"world_size"}
    return job_key(trial, ignoring=placement | LENGTH | NO_INFLUENCE)


def _run_row(number: int, row: ScalingRow, first: ScalingRow) -> RunRow:
    """Losses of a waterfall add up to what is not delivered, so their differences do as well."""
    if row is first:
        return RunRow(run=number, row=row)
    return RunRow(
        run=number,
        row=row,
        behind=_minus(first.delivered, row.delivered),
        behind_by_exposed=_minus(row.lost_by_communication, first.lost_by_communication),
    )


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
