"""What `tune` would try, and what it does not."""

from collections.abc import Sequence

from scalescope.experiment.trial import Trial
from scalescope.report.numbers import duration
from scalescope.report.section import Section, Table


def plan_of_tuning(
    baseline: Trial,
    changes: Sequence[tuple[str, str]],
    launches: int,
    seconds: float,
    budget_s: float | None,
    formats: tuple[str, ...] = (),
) -> Section:
    """What --dry-run shows: (lever, what it changes) of all that would be tried."""
    limit = "" if budget_s is None else f", {duration(budget_s)} at most"
    often = f"Up to {launches} launches each" if launches > 1 else "One launch each, so no verdict"
    columns = ("lever", "changes")
    return Section(
        title=f"Levers to compare with {baseline.label}",
        table=Table(columns=columns, rows=tuple(changes), left=frozenset(columns)),
        lines=(f"{often}, about {duration(seconds)} in all{limit}. Nothing was run.", *formats),
    )


def left_out_section(inapplicable: Sequence[tuple[str, str]]) -> tuple[Section, ...]:
    """What was not tried, levers of the same reason in one line."""
    if not inapplicable:
        return ()
    by_reason: dict[str, list[str]] = {}
    for text, reason in inapplicable:
        by_reason.setdefault(reason, []).append(text)
    lines = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return (Section(title="Not tried", lines=lines),)
