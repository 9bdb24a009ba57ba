"""The ledger: where it lies, what is appended, and what damage costs."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.errors import StorageError
from scalescope.results.ledger import (
    LedgerEntry,
    PredictionKind,
    add_to_ledger,
    ledger_file,
    read_ledger,
)
from tests.speed import patience

ENTRY = LedgerEntry(
    kind=PredictionKind(strategy="ddp", backend="gloo", curve="same ranks"),
    world_size=2,
    curve_ranks=2,
    predicted_s=0.010,
    low_s=0.009,
    high_s=0.0112,
    measured_s=0.011,
    predicted_exposed_s=0.002,
    measured_exposed_s=0.0025,
    setup={"world_size": 2},
    run="2026-01-15T10:30:00+00:00",
    trial_id="abc",
    environment_id="env",
    date="2026-01-15",
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALESCOPE_LEDGER", str(tmp_path / "deep" / "ledger.jsonl"))
    return tmp_path / "deep" / "ledger.jsonl"


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ledger_file() == tmp_path / "scalescope" / "ledger.jsonl"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger_file() == tmp_path / ".local/share/scalescope/ledger.jsonl"
    monkeypatch.setenv("SCALESCOPE_LEDGER", "mine.jsonl")
    assert ledger_file() == Path("mine.jsonl")


def test_what_was_added_is_read_back(file: Path) -> None:
    unknown = dataclasses.replace(ENTRY, trial_id="def", measured_exposed_s=None, curve_ranks=None)
    assert add_to_ledger([ENTRY, unknown]) == 2
    assert read_ledger(shipped=False).entries == (ENTRY, unknown)
    assert ENTRY.is_covered and not dataclasses.replace(ENTRY, measured_s=0.012).is_covered
    assert unknown.exposed_error is None


def test_the_same_prediction_of_the_same_measurement_is_added_once(file: Path) -> None:
    assert add_to_ledger([ENTRY, ENTRY]) == 1
    again = dataclasses.replace(ENTRY, predicted_s=0.5)
    other = dataclasses.replace(ENTRY, kind=dataclasses.replace(ENTRY.kind, curve="other ranks"))
    assert add_to_ledger([again, other]) == 1
    assert read_ledger(shipped=False).entries == (ENTRY, other)
    assert add_to_ledger([]) == 0


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (b"{half a li", "not an entry"),
        (b"[1, 2]", "not an entry"),
        (b'{"ledger_version": "7.0"}', "ledger version 7.0 is not 1.0"),
        (b"[" * 100_000, "not an entry"),
        (b"\xff\xfe", "not an entry"),
    ],
    ids=["half", "list", "version", "deep", "binary"],
)
def test_a_damaged_line_is_reported_and_left_out(file: Path, damage: bytes, why: str) -> None:
    add_to_ledger([ENTRY])
    with file.open("ab") as stream:
        stream.write(damage)  # without an end: the next line must not be lost with it
    later = dataclasses.replace(ENTRY, trial_id="later")
    assert add_to_ledger([later]) == 1
    ledger = read_ledger(shipped=False)
    assert ledger.entries == (ENTRY, later)
    assert ledger.warnings == (f"{file}:2: left out: {why}",)


def test_many_damaged_lines_are_counted(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("damaged\n" * 100)
    warnings = read_ledger(shipped=False).warnings
    assert len(warnings) == 21
    assert warnings[-1] == f"{file}: 80 more lines or values are left out"


@pytest.mark.parametrize(
    ("name", "value"),
    [("measured_s", 0.0), ("predicted_s", -1.0), ("high_s", 1e999), ("world_size", "many"), ("kind", {})],
)
def test_numbers_that_no_measurement_gives_are_left_out(file: Path, name: str, value: object) -> None:
    add_to_ledger([ENTRY])
    raw = {**json.loads(file.read_text()), name: value}
    file.write_text(json.dumps(raw) + "\n")
    ledger = read_ledger(shipped=False)
    assert ledger.entries == () and len(ledger.warnings) == 1


_WRITER = """
import dataclasses, sys
from scalescope.results.ledger import LedgerEntry, PredictionKind, add_to_ledger
kind = PredictionKind(strategy="ddp", backend="gloo", curve="same ranks")
for number in range(40):
    for trial in (f"{sys.argv[1]}-{number}", f"shared-{number}"):
        add_to_ledger([LedgerEntry(kind=kind, world_size=2, curve_ranks=2, predicted_s=1.0, low_s=0.5,
                                   high_s=2.0, measured_s=1.0, trial_id=trial)])
"""


def test_several_writers_lose_nothing_and_repeat_nothing(file: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(number)]) for number in range(3)]
    assert [writer.wait(timeout=patience(120)) for writer in writers] == [0, 0, 0]
    ledger = read_ledger(shipped=False)
    assert ledger.warnings == ()
    names = [entry.trial_id for entry in ledger.entries]
    assert len(names) == len(set(names)) == 3 * 40 + 40
    assert len(file.read_text().splitlines()) == 160


def test_a_place_that_cannot_be_written_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCALESCOPE_LEDGER", str(tmp_path / "file" / "ledger.jsonl"))
    with pytest.raises(StorageError, match="could not be written"):
        add_to_ledger([ENTRY])


def test_a_ledger_that_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_LEDGER", str(tmp_path))
    ledger = read_ledger(shipped=False)
    assert ledger.entries == () and "cannot be read" in ledger.warnings[0]


def test_the_shipped_ledger_is_whole() -> None:
    assert read_ledger().warnings == ()
