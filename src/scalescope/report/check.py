"""The screen of `check`."""

from scalescope.analysis.checks import Check
from scalescope.report.section import Section, Table


def check_sections(checks: tuple[Check, ...], matrix: list[str]) -> tuple[Section, ...]:
    """A sentence first, then one line for each thing looked at, then the link matrix."""
    bad = [check for check in checks if check.level == "fail"]
    doubtful = [check for check in checks if check.level == "warn"]
    if bad:
        verdict = f"A run here would be meaningless: {bad[0].subject}: {bad[0].text}."
    elif doubtful:
        verdict = f"A run here is possible; {len(doubtful)} thing(s) may spoil it."
    else:
        verdict = "This machine looks ready."
    rows = tuple((check.level, check.subject, check.text) for check in checks)
    advice = tuple(f"{check.level}: {check.subject}: {check.advice}." for check in checks if check.advice)
    columns = ("", "what", "seen")
    return (
        Section(lines=(verdict,)),
        Section(table=Table(columns=columns, rows=rows, left=frozenset(columns)), lines=advice),
        Section(title="Links", lines=tuple(matrix)),
    )
