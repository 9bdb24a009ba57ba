"""Launches of earlier runs are read from the newest folders, and only those of this machine."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from scalescope.results import run as runs
from scalescope.results.result import Result, to_json
from scalescope.results.run import earlier_results
from tests.builders.results import make_result, make_trial

HERE = make_result(make_trial(), [[0.01] * 10]).environment_id


def store(path: Path, *results: Result, age_s: float = 0.0) -> None:
    path.mkdir(parents=True)
    trials = path / "trials.jsonl"
    trials.write_text("".join(json.dumps(to_json(result)) + "\n" for result in results))
    os.utime(trials, (1e9 - age_s, 1e9 - age_s))


def result(**changes: object) -> Result:
    return dataclasses.replace(make_result(make_trial(), [[0.01] * 10]), **changes)  # type: ignore[arg-type]


def durations(root: Path, but: Path | None = None) -> list[float]:
    return [known.duration_s for known in earlier_results(root, HERE, but=but)]


def test_finished_launches_of_this_machine_are_read_newest_run_first(tmp_path: Path) -> None:
    store(tmp_path / "a", result(duration_s=1.0), age_s=10.0)
    store(tmp_path / "b", result(duration_s=2.0), result(duration_s=9.0, status="failed", ranks=[]))
    store(tmp_path / "c", result(duration_s=3.0, environment_id="another"))
    assert durations(tmp_path) == [2.0, 1.0]
    assert durations(tmp_path, but=tmp_path / "b") == [1.0]


def test_only_so_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        store(tmp_path / str(number), *[result(duration_s=float(number))] * 3, age_s=number)
    monkeypatch.setattr(runs, "_MOST_RUNS", 2)
    monkeypatch.setattr(runs, "_MOST_LAUNCHES", 1)
    assert durations(tmp_path) == [0.0, 1.0]
    monkeypatch.setattr(runs, "_LARGEST_BYTES", 10)
    assert durations(tmp_path) == []


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    store(tmp_path / "good", result(duration_s=1.0))
    with (tmp_path / "good" / "trials.jsonl").open("a") as stream:
        stream.write("{\n\n[]\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("good")
    assert durations(tmp_path) == [1.0]
    assert durations(tmp_path / "nowhere") == []
