"""The page about faults says what tests saw, and never more."""

from tests.faults.page import Observation, page
from tests.faults.rows import ROWS


def _line(text: str, number: int) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {number} |"))
    return line


def test_a_row_without_a_test_is_not_run() -> None:
    text = page({})
    assert all("| not run |" in _line(text, row.number) for row in ROWS)


def test_failures_come_first_and_texts_once() -> None:
    passed = Observation("passed", "code 4", 1.0)
    failed = Observation("failed", "code 1", 0.5)
    line = _line(page({4: [passed, passed, failed]}), 4)
    assert line.endswith("| **1 failed**; code 4 | 2.5 |")


def test_rows_are_numbered_from_one() -> None:
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))
