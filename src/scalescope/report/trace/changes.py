"""What became slower or faster between two recordings, in words and as data."""

from collections.abc import Sequence
from typing import Any

from scalescope.analysis.trace.changes import Change, JobChanges
from scalescope.report.numbers import MISSING, in_ms, milliseconds, percent, shortened, signed_percent
from scalescope.report.section import Figure, Panel, Section, Series, Table
from scalescope.report.trace.job import PARTS, headline, short_name

_SHOWN = 10
_LEAST_SHARE = 0.002  # of a step


def changes_verdict(changes: JobChanges) -> str:
    """`A step takes 10.4 ms after 23.5 ms before: −55.7 %.`"""
    before_s, after_s = changes.before.step_s, changes.after.step_s
    change = signed_percent(after_s / before_s - 1.0)
    verdict = f"A step takes {in_ms(after_s)} after {in_ms(before_s)} before: {change}."
    if abs(after_s - before_s) <= changes.noise_s:
        verdict += " That is within normal step-to-step variation."
    return verdict


def changes_sections(changes: JobChanges) -> tuple[Section, ...]:
    """The step, then parts, exchanges and operations that changed, the largest first."""
    before_s = changes.before.step_s
    verdict = changes_verdict(changes)
    sections = [
        Section(
            title="Traces compared",
            lines=(f"Before: {headline(changes.before)}.", f"After: {headline(changes.after)}.", verdict),
        )
    ]
    for title, rows in (
        ("Where a step goes, ms per step", changes.parts),
        ("Exchanges, ms per step", changes.exchanges),
        ("Operations of the first rank, ms per step", changes.operations),
    ):
        worth = [row for row in rows if abs(row.more_s) >= _LEAST_SHARE * before_s][:_SHOWN]
        if worth:
            sections.append(Section(title=title, table=_table(worth, before_s)))
    return tuple(sections)


def changes_figure(changes: JobChanges) -> Figure:
    """The mean step before and after as stacks of its parts."""
    jobs = {"before": changes.before, "after": changes.after}
    parts = [part for part in PARTS if any(job.breakdown.get(part, 0.0) for job in jobs.values())]
    series = tuple(
        Series(
            label=PARTS[part],
            x=tuple(map(float, range(len(jobs)))),
            y=tuple(job.breakdown.get(part, 0.0) * 1e3 for job in jobs.values()),
            colour=colour,
        )
        for colour, part in enumerate(parts)
    )
    panel = Panel(kind="stacked", x_label="ms per step", y_label="", series=series, names=tuple(jobs))
    return Figure(
        name="changes",
        title="Where a step goes, before and after",
        alt=f"Two stacked bars: {headline(changes.before)}; {headline(changes.after)}.",
        panels=(panel,),
    )


def _table(rows: Sequence[Change], step_s: float) -> Table:
    columns = ("what", "before", "after", "change", "of the step", "calls")
    return Table(
        columns=columns,
        rows=tuple(_row(row, step_s) for row in rows),
        left=frozenset(("what",)),
        optional=("calls",),
    )


def _row(row: Change, step_s: float) -> tuple[str, ...]:
    name = PARTS.get(row.name, row.name)
    if row.kind == "operation":
        op, _, shapes = row.name.partition(" ")
        name = (
            f"{short_name(op if op != 'void' else row.name)} {shortened(shapes, 40) if op != 'void' else ''}"
        )
    calls = ("new" if row.before_count is None else f"{row.before_count:.0f}") + " → "
    calls += "gone" if row.after_count is None else f"{row.after_count:.0f}"
    sign = "+" if row.more_s >= 0.0 else "−"
    return (
        name.strip(),
        MISSING if row.before_s is None else milliseconds(row.before_s),
        MISSING if row.after_s is None else milliseconds(row.after_s),
        f"{sign}{milliseconds(abs(row.more_s))}",
        percent(abs(row.more_s) / step_s),
        "" if row.kind == "part" else calls,
    )


def changes_json(changes: JobChanges) -> dict[str, Any]:
    """All of it as data."""
    return {
        "kind": "compared traces",
        "before": {"step_s": changes.before.step_s, "ranks": len(changes.before.ranks)},
        "after": {"step_s": changes.after.step_s, "ranks": len(changes.after.ranks)},
        "noise_s": changes.noise_s,
        **{
            kind: [
                {
                    "name": row.name,
                    "before_s": row.before_s,
                    "after_s": row.after_s,
                    "before_per_step": row.before_count,
                    "after_per_step": row.after_count,
                }
                for row in rows
            ]
            for kind, rows in (
                ("parts", changes.parts),
                ("exchanges", changes.exchanges),
                ("operations", changes.operations),
            )
        },
    }
