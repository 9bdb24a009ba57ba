"""The answer so far of a study that decides launch by launch: what reaches the watcher, and when."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.results.run import Run
from scalescope.studies import campaign
from scalescope.studies.execution import run_study
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import Host, Interim, InterimRow
from scalescope.studies.training.train import TrainStudy
from scalescope.studies.watcher import Budget

from .recording import RecordingWatcher, ask

BATCHES = [10, 20, 30]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSearch(TrainStudy):
    """Tries one batch size after the other; the first parts are as long as `part_sizes` says, then 1."""

    breakdown: bool = False
    part_sizes: tuple[int, ...] = ()
    _waiting: list[Trial] = dataclasses.field(default_factory=list)

    def plan(self, request: Request, host: Host) -> Plan:
        plan = super().plan(request, host)
        self._waiting.extend(plan.trials)
        return dataclasses.replace(plan, chosen=())

    def next_launches(self, run: Run, remaining_s: float | None) -> Sequence[Launch]:
        size = self.part_sizes[0] if not run.results and self.part_sizes else 1
        trials = [self._waiting.pop(0) for _ in range(min(size, len(self._waiting)))]
        return [Launch(trial, label=f"trying {_name(trial)}") for trial in trials]

    def interim(self, run: Run) -> Interim:
        names = [_name(result.trial) for result in run.results]
        rows = [InterimRow(name=name, speedup=None, launches=1, is_best=name == names[-1]) for name in names]
        return Interim(f"the latest is {names[-1]}", tuple(rows))


def _name(trial: Trial) -> str:
    return f"batch {trial.rank_batch_size}"


def searched(watcher: RecordingWatcher, launcher: FakeLauncher | None = None, **changes: Any) -> None:
    study = BatchSearch(part_sizes=changes.pop("part_sizes", ()))
    launcher = launcher or FakeLauncher(CostModel())
    run_study(study, ask("train", batch_size=BATCHES, **changes), launcher, watcher)


@pytest.mark.parametrize("part_sizes", [(), (3,)])
def test_a_search_answers_after_every_launch(part_sizes: tuple[int, ...]) -> None:
    watcher = RecordingWatcher()
    searched(watcher, part_sizes=part_sizes)
    assert [interim.text for interim in watcher.verdicts] == [f"the latest is batch {n}" for n in BATCHES]
    assert [[row.name for row in interim.rows] for interim in watcher.verdicts] == [
        ["batch 10"],
        ["batch 10", "batch 20"],
        ["batch 10", "batch 20", "batch 30"],
    ]
    assert [interim.best and interim.best.name for interim in watcher.verdicts] == [
        "batch 10",
        "batch 20",
        "batch 30",
    ]


def test_labels_of_launches_reach_the_watcher() -> None:
    watcher = RecordingWatcher()
    searched(watcher)
    assert watcher.labels == [f"trying batch {batch}" for batch in BATCHES]
    assert watcher.begun == [(0, 0), (1, 0), (1, 0), (1, 0)]


def test_a_launch_that_fails_is_followed_by_an_answer_too() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="oom", reason="made up") if trial.rank_batch_size == 20 else None

    watcher = RecordingWatcher()
    searched(watcher, FakeLauncher(CostModel(), outcomes=fail))
    assert len(watcher.verdicts) == len(BATCHES)


def test_every_part_is_told_the_whole_budget_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def take_ten_seconds(trial: Trial, launch: int) -> None:
        now[0] += 10.0

    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watcher = RecordingWatcher()
    searched(watcher, FakeLauncher(CostModel(), outcomes=take_ten_seconds), budget="25s")
    left_s = [25.0, 25.0, 15.0, 5.0]
    assert watcher.budgets == [Budget(total_s=25.0, left_s=seconds) for seconds in left_s]
    (note,) = [note for note in watcher.notes if "The budget" in note]
    assert " of 1 " not in note
    assert "ended the run before it was done" in note


def test_a_launch_that_is_repeated_is_followed_by_an_answer_too() -> None:
    busy, quiet = (OtherLoad(cores=2, other_cores=cores, rank_waits=(cores / 2,)) for cores in (1.1, 0.0))
    launcher = FakeLauncher(CostModel(), loads=lambda trial, attempt: busy if attempt == 0 else quiet)
    watcher = RecordingWatcher()
    searched(watcher, launcher)
    assert watcher.labels[:2] == ["trying batch 10", "trying batch 10"]
    assert len(watcher.verdicts) == len(watcher.launched) == len(BATCHES) + 1
