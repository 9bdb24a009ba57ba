"""What `tune` would try, and what it does not."""

from collections.abc import Sequence

from scalescope.experiment.trial import Trial
from scalescope.report.numbers import duration
from scalescope.report.section import Section, Table


def plan_of_tuning(
    baseline: Trial,
    changes: Sequence[tuple[str, str]],
    launch_s: float | None,
    budget_s: float | None,
    *,
    once: bool = False,
    formats: tuple[str, ...] = (),
) -> Section:
    """What --dry-run shows: (lever, what it changes) of all that may be tried, the most promising first.

    `launch_s` is None where nobody knows how long a launch takes.
    """
    each = "" if launch_s is None else f"; a launch takes about {duration(launch_s)}"
    within = "until it is settled" if budget_s is None else f"for {duration(budget_s)} at most"
    how = (
        "One launch each, so no verdict"
        if once
        else f"The current settings first, then launches on top of the best so far, {within}"
    )
    columns = ("lever", "changes")
    return Section(
        title=f"Levers to compare with {baseline.label}",
        table=Table(columns=columns, rows=tuple(changes), left=frozenset(columns)),
        lines=(f"{how}{each}. Nothing was run.", *formats),
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
