"""The ledger: where it lies, what is appended, and what damage costs."""

import dataclasses
import fcntl
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from scalescope.analysis.prediction.intervals import residuals_of
from scalescope.errors import StorageError
from scalescope.report.prediction.ledger import ledger_rows
from scalescope.results.ledger import (
    LARGEST_BYTES,
    NO_HOME,
    LedgerEntry,
    PredictionKind,
    add_to_ledger,
    ledger_file,
    ledger_line,
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
        (b'{"ledger_version": "7.0"}', "ledger_version: "),
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
    (warning,) = ledger.warnings
    assert warning.startswith(f"{file}: 1 damaged line left out; the first: line 2: {why}")


def test_damaged_lines_are_counted_in_one_warning(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("damaged\n" * 100)
    (warning,) = read_ledger(shipped=False).warnings
    assert warning.startswith(f"{file}: 100 damaged lines left out; the first: line 1: not an entry")


_FIELDS = [*json.loads(ledger_line(ENTRY)), *(f"kind.{name}" for name in dataclasses.asdict(ENTRY.kind))]
_VALUES = ["1e999", "-1e999", "NaN", "1e300", "-1", "0", '"many"', "{}", "[]", "true", "9" * 50]


def test_any_value_of_any_field_is_usable_or_left_out(file: Path) -> None:
    file.parent.mkdir(parents=True)
    for name in _FIELDS:
        raw = json.loads(ledger_line(ENTRY))
        owner, key = (raw["kind"], name.removeprefix("kind.")) if name.startswith("kind.") else (raw, name)
        owner[key] = "VALUE"
        text = json.dumps(raw)
        file.write_text("\n".join(text.replace('"VALUE"', value) for value in _VALUES))
        ledger = read_ledger(shipped=False)
        assert len(ledger.warnings) == 1, name  # no field takes all of these
        ledger_rows(ledger.entries)
        for residual in residuals_of(ledger.entries):
            assert math.isfinite(residual.step) and math.isfinite(residual.distance), name


def test_an_entry_that_could_not_be_read_back_is_not_added(file: Path) -> None:
    endless = dataclasses.replace(ENTRY, high_s=math.inf)
    assert add_to_ledger([endless, dataclasses.replace(ENTRY, run="\ud800")]) == 1
    assert read_ledger(shipped=False).warnings == ()


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(LARGEST_BYTES + 1)


@pytest.mark.parametrize("make", [os.mkfifo, _link, _huge, Path.mkdir])
def test_what_is_not_a_small_regular_file_is_neither_read_nor_written(
    file: Path, make: Callable[[Path], None]
) -> None:
    file.parent.mkdir(parents=True)
    make(file)
    (warning,) = read_ledger(shipped=False).warnings
    assert warning.startswith(f"{file}: cannot be read: ")
    with pytest.raises(StorageError, match="could not be written"):
        add_to_ledger([ENTRY])


def test_a_lock_that_another_process_holds_is_not_waited_for_without_end(file: Path) -> None:
    add_to_ledger([ENTRY])
    with file.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process held its lock for 0 s"):
            add_to_ledger([dataclasses.replace(ENTRY, trial_id="later")], lock_s=0.0)
    assert read_ledger(shipped=False).entries == (ENTRY,)


def test_without_a_home_folder_there_is_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("SCALESCOPE_LEDGER", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert ledger_file() is None
    assert read_ledger(shipped=False).warnings == (NO_HOME,)
    with pytest.raises(StorageError, match="no home folder"):
        add_to_ledger([ENTRY])


_WRITER = """
import dataclasses, sys
from scalescope.results.ledger import LedgerEntry, PredictionKind, add_to_ledger
kind = PredictionKind(strategy="ddp", backend="gloo", curve="same ranks")
for number in range(10):
    for trial in (f"{sys.argv[1]}-{number}", f"shared-{number}"):
        add_to_ledger([LedgerEntry(kind=kind, world_size=2, curve_ranks=2, predicted_s=1.0, low_s=0.5,
                                   high_s=2.0, measured_s=1.0, trial_id=trial)])
"""


def test_several_writers_lose_nothing_and_repeat_nothing(file: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(number)]) for number in range(2)]
    assert [writer.wait(timeout=patience(120)) for writer in writers] == [0, 0]
    ledger = read_ledger(shipped=False)
    assert ledger.warnings == ()
    names = [entry.trial_id for entry in ledger.entries]
    assert len(names) == len(set(names)) == 2 * 10 + 10
    assert len(file.read_text().splitlines()) == 30


def test_the_shipped_ledger_is_whole() -> None:
    assert read_ledger().warnings == ()
