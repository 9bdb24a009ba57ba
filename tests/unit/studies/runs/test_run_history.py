"""The history of runs in the user's cache: what is kept, and that damage costs nothing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.run_spread import DEFAULT_SPREAD
from scalescope.results.provenance import describe_environment
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.run_record import RunRecord
from scalescope.studies.runs.run_history import (
    history_file,
    machine_id,
    read_history,
    remember_run,
    run_means,
    spread_between,
)
from tests.builders.results import make_result, make_trial
from tests.simulated.launcher import TWO_CORES

TRIAL = make_trial(batch_size=10)
STEPS = (0.0100, 0.0101, 0.0099)


def made(number: int, factor: float = 1.0, **changes: Any) -> Run:
    """A run of one configuration; `number` tells it from others."""
    results: tuple[Result, ...] = tuple(
        make_result(changes.get("trial", TRIAL), [[factor * step] * 10], launch=launch)
        for launch, step in enumerate(changes.get("steps", STEPS))
    )
    machine = dataclasses.replace(TWO_CORES, **changes.get("machine", {}))
    environment = {**describe_environment(machine, "1"), **changes.get("environment", {})}
    record = RunRecord(
        verb=changes.get("verb", "train"), started_at=f"2026-01-15T10:{number:02}:00+00:00", directory="."
    )
    return Run(
        path=Path(f"run{number}"), record=record, environment=environment, results=results, warnings=()
    )


def remember(*runs: Run) -> None:
    for run in runs:
        remember_run(run)


HERE = machine_id(made(0).environment)


def test_every_run_is_kept_and_a_run_that_goes_on_replaces_itself() -> None:
    remember(made(0), made(1), made(0, steps=(*STEPS, 0.0100)))
    assert [mean.run for mean in read_history(HERE)] == [
        *dict.fromkeys(mean.run for mean in read_history(HERE))
    ]
    assert len(read_history(HERE)) == 2
    assert len({mean.job for mean in read_history(HERE)}) == 1
    assert list(history_file().parent.iterdir()) == [history_file()]  # nothing temporary is left


def test_the_spread_is_that_of_earlier_runs_without_those_compared() -> None:
    factors = (1.0, 1.03, 0.97, 1.02, 0.98)
    remember(*(made(number, factor) for number, factor in enumerate(factors)))
    base, new = made(10), made(11, 2.0)
    assert spread_between(base, made(0)) == DEFAULT_SPREAD  # four are left
    remember(base, new)
    spread = spread_between(base, new)
    assert spread.runs == 5 and 0.01 < spread.deviation < 0.05
    assert spread_between(base, base).deviation == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"verb": "tune"},
        {"steps": STEPS[:1]},
        {
            "environment": {"git": {"commit": "a" * 40, "changed": True}},
            "trial": TRIAL.replace(workload="m:f"),
        },
        {"trial": TRIAL.replace(workload="gone.py:build")},
    ],
    ids=["chosen launches", "one launch", "changes without a commit", "code that is gone"],
)
def test_what_cannot_be_held_against_another_run_is_not_kept(changes: dict[str, Any]) -> None:
    remember(made(0, **changes))
    assert not history_file().exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"torch_version": "2.14"}},
        {"environment": {"variables": {"NCCL_ALGO": "Ring"}}},
        {"environment": {"scalescope_version": "2"}},
        {"trial": TRIAL.replace(lr=0.5)},
    ],
)
def test_other_versions_variables_and_settings_are_other_jobs_of_the_same_machine(
    changes: dict[str, Any],
) -> None:
    (here,), (there,) = run_means(made(0)), run_means(made(1, **changes))
    assert here.job != there.job
    assert machine_id(made(1, **changes).environment) == HERE


def test_code_of_a_user_is_told_apart_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trial, no_git = TRIAL.replace(workload="model.py:build"), {"git": None}
    jobs = []
    for text in ("a = 1", "a = 2", "a = 1"):
        Path("model.py").write_text(text)
        jobs += [mean.job for mean in run_means(made(0, trial=trial, environment=no_git))]
    assert jobs[0] == jobs[2] != jobs[1]


def test_another_machine_has_another_history() -> None:
    remember(made(0), made(1, machine={"cores": 4}))
    assert len(read_history(HERE)) == 1
    assert len(json.loads(history_file().read_text())["machines"]) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"machines": 3}', '{"machines": {"x": []}}'])
def test_a_damaged_history_is_begun_anew(text: str) -> None:
    history_file().parent.mkdir(parents=True)
    history_file().write_text(text)
    assert spread_between(made(0), made(1)) == DEFAULT_SPREAD
    remember(made(0))
    assert len(read_history(HERE)) == 1


def test_damaged_entries_are_left_out() -> None:
    remember(made(0), made(1))
    stored = json.loads(history_file().read_text())
    runs = stored["machines"][HERE]["runs"]
    bad = [{**runs[0], "mean": value} for value in ("x", None, 1e30)] + [3, {}]
    stored["machines"][HERE]["runs"] = [*bad, *runs]
    history_file().write_text(json.dumps(stored))
    assert len(read_history(HERE)) == 2


def test_a_cache_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember(made(0))
    assert spread_between(made(0), made(1)) == DEFAULT_SPREAD


def test_old_runs_make_room() -> None:
    remember(*(made(number) for number in range(21)))
    kept = read_history(HERE)
    assert len(kept) == 20
    assert (kept[0].run, kept[-1].run) == (run_means(made(1))[0].run, run_means(made(20))[0].run)
