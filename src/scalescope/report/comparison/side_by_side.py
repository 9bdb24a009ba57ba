"""Several runs side by side: one row for each run, world size and batch; no verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.commands import batch_text
from scalescope.analysis.comparison.environments import Difference
from scalescope.analysis.comparison.side_by_side import JobGroup, RunRow
from scalescope.report.commands import units_of
from scalescope.report.comparison.two_runs import SCHEMA_VERSION, differences_json
from scalescope.report.numbers import (
    MISSING,
    counted,
    in_ms,
    percent,
    percent_with_interval,
    significant,
)
from scalescope.report.section import Figure, Panel, Section, Series, Table
from scalescope.report.varied import shown_value, varied_settings

_MOST_LINES = 8  # of the figure
_MOST_ALONE = 8  # jobs of a run in a line; the JSON has all


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The rows of several runs, matched or `alone`; `differences` are each run's to the first."""

    runs: tuple[str, ...]
    groups: tuple[JobGroup, ...]
    alone: tuple[RunRow, ...]
    differences: tuple[tuple[Difference, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def other_machines(self) -> bool:
        return any(
            difference.kind == "hardware" for differences in self.differences for difference in differences
        )


def side_by_side_sections(sides: SideBySide) -> tuple[Section, ...]:
    """The largest world size in a sentence, then all rows, then what a single run has, then what differs."""
    machines = "The hardware differs" if sides.other_machines else "The hardware is the same"
    no_verdict = f"{machines}; runs are shown side by side, without a verdict."
    return (
        Section(lines=(_sentence(sides), no_verdict, *sides.notes)),
        _table(sides),
        *_alone(sides),
        *_differing(sides),
    )


def side_by_side_figure(sides: SideBySide) -> Figure:
    """Efficiency by number of ranks, a line for each run and batch."""
    lines: dict[str, list[tuple[int, float]]] = {}
    varied = _varied(sides)
    for group in sides.groups:
        for member in group.members:
            trial = member.row.trial
            others = [f"{name} {shown_value(trial, name)}" for name in varied if name in trial.settings]
            label = ", ".join([sides.runs[member.run], batch_text(trial), *others])
            lines.setdefault(label, []).append((group.first.ranks, 100.0 * member.row.efficiency.value))
    series = [
        Series(
            label=label, x=tuple(float(x) for x, _ in sorted(points)), y=tuple(y for _, y in sorted(points))
        )
        for label, points in list(lines.items())[:_MOST_LINES]
    ]
    panel = Panel(kind="lines", x_label="ranks", y_label="efficiency, %", series=tuple(series), x_log=True)
    return Figure(
        name="side_by_side",
        title="Efficiency by number of ranks",
        alt=f"Lines of efficiency for {', '.join(sides.runs)}.",
        panels=(panel,),
    )


def _sentence(sides: SideBySide) -> str:
    """Efficiencies where most ranks work, at the largest batch, and what the last one's gap is made of."""
    group = max(sides.groups, key=lambda group: (group.first.ranks, group.first.batch))
    first = group.first
    shares = ", ".join(
        f"{percent(member.row.efficiency.value)} in {sides.runs[member.run]}" for member in group.members
    )
    where = f"{counted(first.ranks, 'rank')}, {batch_text(first.trial)}"
    if first.ranks == 1:
        rates = [f"{_rate(member)} in {sides.runs[member.run]}" for member in group.members]
        unit = units_of(member.row.configuration for member in group.members)
        return f"{where}: {unit}/s {', '.join(rates)}."
    worst = max(group.members, key=lambda member: member.behind or 0.0)
    if worst.behind is None or worst.behind <= 0.0:
        return f"{where}: efficiency {shares}."
    reference = sides.runs[group.members[0].run]
    gap = f"{sides.runs[worst.run]} delivers {worst.behind:.2f} ranks' worth less than {reference}"
    if worst.behind_by_exposed is None:
        return f"{where}: efficiency {shares}; {gap}, cause unknown."
    return f"{where}: efficiency {shares}; {gap}, {worst.behind_by_exposed:.2f} of it communication."


def _varied(sides: SideBySide) -> list[str]:
    """The settings that tell jobs apart."""
    trials = [member.row.trial for group in sides.groups for member in group.members]
    left_out = ("strategy", "lr", "epochs", "steps_per_epoch", "warmup_steps")
    return [name for name in varied_settings(trials) if name not in left_out]


def _table(sides: SideBySide) -> Section:
    varied = _varied(sides)
    members = [member for group in sides.groups for member in group.members]
    units = units_of(member.row.configuration for member in members)
    cells = [_cells(sides, member, varied, units) for member in members]
    return Section(
        table=Table(
            columns=tuple(cells[0]),
            rows=tuple(tuple(row.values()) for row in cells),
            left=frozenset(("run",)),
            optional=tuple(varied),
        ),
        lines=(
            "ranks behind: how many ranks' worth of speed less than the first run that has this job; of it "
            "communication: the "
            "part caused by communication that compute does not hide (scalescope explain shows the rest).",
        ),
    )


def _cells(sides: SideBySide, member: RunRow, varied: Sequence[str], units: str) -> dict[str, str]:
    row = member.row
    return {
        "ranks": f"{row.ranks}",
        "batch": f"{row.batch:,}",
        "run": sides.runs[member.run],
        **{name: shown_value(row.trial, name) for name in varied},
        f"{units}/s": _rate(member),
        "speedup": f"{row.speedup.value:.2f}×",
        "efficiency": MISSING if row.is_baseline else percent_with_interval(row.efficiency),
        "communication": _exposed(member),
        "ranks behind": MISSING if member.behind is None else f"{member.behind:+.2f}",
        "of it communication": MISSING
        if member.behind_by_exposed is None
        else f"{member.behind_by_exposed:+.2f}",
    }


def _rate(member: RunRow) -> str:
    return significant(member.row.configuration.speed.value, 4)


def _exposed(member: RunRow) -> str:
    exposed = member.row.communication_s
    if exposed is None or member.row.communication_fraction is None:
        return MISSING if member.row.ranks == 1 else "unknown"
    if exposed.value <= 0.0:
        return "~0 ms"
    return f"{in_ms(exposed.value)} ({percent(member.row.communication_fraction)})"


def _alone(sides: SideBySide) -> tuple[Section, ...]:
    """What only one of the runs measured, run by run: it has nothing to be compared with."""
    by_run: dict[int, list[RunRow]] = {}
    for member in sides.alone:
        by_run.setdefault(member.run, []).append(member)
    if not by_run:
        return ()
    varied = varied_settings([member.row.trial for member in sides.alone])
    lines = []
    for run, members in by_run.items():
        rest = f", and {len(members) - _MOST_ALONE} more" if len(members) > _MOST_ALONE else ""
        jobs = "; ".join(_job_text(member, varied) for member in members[:_MOST_ALONE])
        lines.append(f"{sides.runs[run]}: {jobs}{rest}.")
    return (Section(title="Measured in one run only", lines=tuple(lines)),)


def _job_text(member: RunRow, varied: Sequence[str]) -> str:
    row = member.row
    words = [f"{name} {shown_value(row.trial, name)}" for name in varied if name in row.trial.settings]
    return ", ".join((counted(row.ranks, "rank"), batch_text(row.trial), *words))


def _differing(sides: SideBySide) -> tuple[Section, ...]:
    lines = tuple(
        f"{run}: {difference.kind} {difference.name}: {difference.after} "
        f"({difference.before} in {sides.runs[0]})"
        for run, differences in zip(sides.runs, sides.differences, strict=True)
        for difference in differences
    )
    return (Section(title="What differs", lines=lines),) if lines else ()


def side_by_side_json(sides: SideBySide) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": list(sides.runs),
        "rows": [_row_json(sides, member) for group in sides.groups for member in group.members],
        "rows_of_one_run": [_row_json(sides, member) for member in sides.alone],
        "differences": [
            {"run": run, "differs": differences_json(differences)}
            for run, differences in zip(sides.runs, sides.differences, strict=True)
        ],
        "notes": list(sides.notes),
    }


def _row_json(sides: SideBySide, member: RunRow) -> dict[str, Any]:
    row = member.row
    return {
        "run": sides.runs[member.run],
        "trial_id": row.trial.trial_id,
        "world_size": row.ranks,
        "batch_size": row.batch,
        "mode": row.trial.mode,
        "samples_per_s": row.configuration.speed.value,
        "speedup": row.speedup.value,
        "ci95_speedup": row.speedup.bounds,
        "efficiency": row.efficiency.value,
        "ci95_efficiency": row.efficiency.bounds,
        "exposed_comm_s": None if row.communication_s is None else row.communication_s.value,
        "behind_first_ranks": member.behind,
        "behind_first_by_exposed_ranks": member.behind_by_exposed,
    }
