"""Several runs together: launches of earlier ones, and runs of one machine as one."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scalescope.results import run as runs
from scalescope.results.joined import by_machine, joined
from scalescope.results.result import Result, to_json
from scalescope.results.run import Run, earlier_results
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


ONE, TWO = make_trial(strategy="single"), make_trial(strategy="ddp", world_size=2)
EARLY, LATE = "2026-01-15T10:30:00+00:00", "2026-01-16T10:30:00+00:00"


def run(name: str, *results: Any, machine: str = "here") -> Run:
    placed = tuple(dataclasses.replace(result, environment_id=machine) for result in results)
    return Run(path=Path(name), environment={"of": name}, results=placed, warnings=(f"{name} is short",))


def test_a_run_of_another_machine_is_apart() -> None:
    here = [run(name, make_result(ONE, [[0.1]])) for name in ("a", "b")]
    other = run("c", make_result(ONE, [[0.1]]), machine="there")
    groups = by_machine([here[0], other, here[1]])
    assert [[str(member.path) for member in group] for group in groups] == [["a", "b"], ["c"]]


def test_results_of_all_count_and_of_one_launch_the_newer() -> None:
    old = run("old", make_result(ONE, [[0.1]]), make_result(ONE, [[0.2]], launch=1, started_at=EARLY))
    new = run("new", make_result(ONE, [[0.5]], started_at=LATE), make_result(TWO, [[0.3], [0.3]]))
    whole = joined([new, old])
    steps = {result.key: result.ranks[0].samples["step_time_s"] for result in whole.results}
    assert steps == {(ONE.trial_id, 0): [0.5], (ONE.trial_id, 1): [0.2], (TWO.trial_id, 0): [0.3]}
    assert [result.ranks[0].samples["step_time_s"] for result in whole.replaced] == [[0.1]]
    assert set(whole.warnings) == {"old is short", "new is short"}


def test_a_newer_failure_does_not_hide_a_result() -> None:
    failed = dataclasses.replace(make_result(ONE, [[0.5]], started_at=LATE), status="failed")
    whole = joined([run("a", make_result(ONE, [[0.1]], started_at=EARLY)), run("b", failed)])
    assert [result.status for result in whole.results] == ["ok"]


def test_the_run_with_most_ranks_gives_path_and_environment_and_files_stay_where_they_are() -> None:
    large = run("large", make_result(TWO, [[0.3], [0.3]], started_at=EARLY))
    small = run("small", make_result(ONE, [[0.1]], started_at=LATE))
    whole = joined([small, large])
    assert (whole.path, whole.environment) == (Path("large"), {"of": "large"})
    assert {str(whole.folder_of(result)) for result in whole.results} == {"large", "small"}
    assert large.folder_of(large.results[0]) == Path("large")
