"""docs/reliability.md: rows, and what the last test run saw of each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.rows import ROWS, Row

SEEN, ROWS_SHOWN = "seen", "rows"  # what a test notes of itself

_HEAD = """# Reliability

What happens when something breaks. `make reliability` runs `tests/faults` and writes this page; seconds are
those of whole tests, most of which start real ranks. Always expected: finished launches are kept, the launch
under way is recorded as failed with its reason, rank and step, nothing of ours is left running, and the exit
code is the documented one.

| # | fault | expected | seen | s |
|--:|---|---|---|--:|
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """How one test ended, what it noted, and how long it took."""

    outcome: str
    text: str
    seconds: float


def page(observations: Mapping[int, Sequence[Observation]]) -> str:
    """The page as Markdown."""
    return _HEAD + "".join(_line(row, observations.get(row.number, ())) for row in ROWS)


def _line(row: Row, observations: Sequence[Observation]) -> str:
    seconds = f"{sum(seen.seconds for seen in observations):.1f}" if observations else ""
    cells = (str(row.number), row.fault, row.expected, _seen(observations), seconds)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _seen(observations: Sequence[Observation]) -> str:
    """The words of the tests; what failed or did not run comes first."""
    if not observations:
        return "not run"
    outcomes = [seen.outcome for seen in observations]
    counts = {outcome: outcomes.count(outcome) for outcome in ("failed", "skipped")}
    parts = [f"**{count} {outcome}**" for outcome, count in counts.items() if count]
    texts = list(dict.fromkeys(seen.text for seen in observations if seen.text and seen.outcome == "passed"))
    as_expected = ["as expected"] if not texts and not parts else []
    return "; ".join([*parts, *texts, *as_expected])


class PageWriter:
    """Writes the page when all tests have run, in whichever processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._observations: defaultdict[int, list[Observation]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not (report.when == "setup" and report.skipped):
            return
        properties = dict[str, object](report.user_properties)
        numbers = properties.get(ROWS_SHOWN, ())
        text = "; ".join(str(value) for name, value in report.user_properties if name == SEEN)
        for number in numbers if isinstance(numbers, list) else ():
            observation = Observation(report.outcome, text, report.duration)
            self._observations[number].append(observation)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(page(self._observations), encoding="utf-8")
