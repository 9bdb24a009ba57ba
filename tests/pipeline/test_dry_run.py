"""--dry-run: an estimate from earlier runs, from operations, or from a few steps of an own workload."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.studies.dry_run import estimated_run
from scalescope.studies.study import Report
from scalescope.studies.train import TrainStudy
from tests.builders.results import make_result
from tests.builders.studies import plan_of, train
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

OWN = {"workload": "model.py:build", "batch_size": 8}


@pytest.fixture(autouse=True)
def own_model() -> None:
    Path("model.py").write_text("def build(): ...\n")


def planned(
    launcher: FakeLauncher | None = None, *, breakdown: bool = True, **asked: Any
) -> tuple[Report, RecordingWatcher]:
    watcher = RecordingWatcher()
    request = ask("train", output_dir=None, dry_run=True, **asked)
    report = train(request, launcher or FakeLauncher(CostModel()), watcher, breakdown=breakdown)
    return report, watcher


def line_of(report: Report) -> str:
    (section,) = report.sections
    return section.lines[0]


def test_without_earlier_runs_operations_are_counted_and_nothing_is_run() -> None:
    launcher = FakeLauncher(CostModel())
    report, _ = planned(launcher, batch_size=8)
    assert "from operation counts" in line_of(report) and "Nothing was run." in line_of(report)
    assert launcher.launched == []
    assert not Path("runs").exists()


def test_earlier_runs_of_this_machine_are_learnt_from() -> None:
    train(ask("train", output_dir="runs/a", batch_size=8), FakeLauncher(CostModel()), RecordingWatcher())
    report, _ = planned(batch_size=16)
    assert "from earlier runs on this machine" in line_of(report)
    other = FakeLauncher(CostModel(), dataclasses.replace(TWO_CORES, cpu_model="another"))
    assert "from operation counts" in line_of(planned(other, batch_size=16)[0])


def test_a_few_steps_of_an_own_workload_are_timed() -> None:
    launcher = FakeLauncher(CostModel(fixed_s=2.0))
    report, watcher = planned(launcher, breakdown=False, **OWN, steps_per_epoch=100, repeats=3)
    assert "from a few steps, which were run for this" in line_of(report)
    assert "about 10 min" in line_of(report)  # 3 launches of 100 steps of 2 s
    assert len(launcher.launched) == 1
    assert launcher.deadlines != [None]  # slow steps are not waited for
    assert watcher.launched == []
    assert not Path("runs").exists()
    explained, _ = planned(launcher, **OWN, steps_per_epoch=100, repeats=3)
    assert "2 trials × 3 launches = 6 launches, about 20 min" in line_of(explained)  # the other is preloaded


def test_an_own_workload_that_was_measured_is_not_run_again() -> None:
    train(ask("train", output_dir="runs/a", **OWN), FakeLauncher(CostModel()), RecordingWatcher())
    launcher = FakeLauncher(CostModel())
    assert "from earlier runs" in line_of(planned(launcher, **OWN, repeats=3)[0])
    assert launcher.launched == []


def test_an_own_workload_that_cannot_be_built_is_refused() -> None:
    def refuse(trial: Trial, launch: int) -> Outcome:
        return Outcome(status="failed", reason="model.py:3: no model", bad_input=True)

    with pytest.raises(BadInput, match=r"model\.py:3: no model"):
        planned(FakeLauncher(CostModel(), outcomes=refuse), **OWN)


def test_steps_that_cannot_be_timed_are_noted() -> None:
    def fail(trial: Trial, launch: int) -> Outcome:
        return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")

    report, watcher = planned(FakeLauncher(CostModel(), outcomes=fail), **OWN)
    assert any("could not be timed" in note for note in watcher.notes)
    assert "from operation counts" in line_of(report)


def seconds_of(launcher: FakeLauncher, **asked: Any) -> float:
    study = TrainStudy()
    request = ask("train", output_dir=None, dry_run=True, **asked)
    plan = plan_of(study, request, launcher)
    return estimated_run(plan, None, launcher, RecordingWatcher())[0]


def test_other_load_makes_runs_longer() -> None:
    machine = dataclasses.replace(TWO_CORES, core_flops_per_s=1e9)
    idle = FakeLauncher(CostModel(), machine)
    busy = FakeLauncher(CostModel(), machine, load_at_start=OtherLoad(cores=2, other_cores=2.0))
    asked: dict[str, Any] = {"batch_size": 4096, "steps_per_epoch": 100, "repeats": 2}
    # Half of the cores are left, and both launches are repeated.
    assert seconds_of(busy, **asked) / seconds_of(idle, **asked) == pytest.approx(4.0, rel=0.05)
    assert seconds_of(busy, **asked, repeat_disturbed="false") == pytest.approx(
        seconds_of(busy, **asked) / 2.0, rel=0.05
    )


def test_what_is_stored_is_not_made_again() -> None:
    asked: dict[str, Any] = {"batch_size": 4096, "steps_per_epoch": 100, "repeats": 4}
    launcher = FakeLauncher(CostModel(), dataclasses.replace(TWO_CORES, core_flops_per_s=1e9))
    plan = plan_of(TrainStudy(), ask("train", **asked), launcher)
    trial = plan.trials[0]
    done = [
        dataclasses.replace(make_result(trial, [[1.0] * 95], launch=launch), duration_s=100.0)
        for launch in range(3)
    ]
    everything, rest = (
        estimated_run(plan, None, launcher, RecordingWatcher(), stored)[0] for stored in (done[:1], done)
    )
    assert (everything, rest) == (pytest.approx(301.0), pytest.approx(101.0))
