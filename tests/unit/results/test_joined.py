"""Runs of one machine as one: whose results count, and where their files are."""

import dataclasses
from pathlib import Path
from typing import Any

from scalescope.results.joined import by_machine, joined
from scalescope.results.run import Run
from tests.builders.results import make_result, make_trial

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
