"""A study that decides launch by launch: its answer so far, its budget, and limits of single launches."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.results.run import Run, load_run
from scalescope.studies.execution import run_study
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.prepared import prepare
from scalescope.studies.study import Host, Interim, InterimRow
from scalescope.studies.train import TrainStudy
from scalescope.studies.watcher import Budget
from tests.builders.timed_launches import Clock, TimedLauncher, campaign_clock
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

BATCHES = [10, 20, 30]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSearch(TrainStudy):
    """Tries one batch size after the other, each with its limit; the first part is as long as `first`."""

    breakdown: bool = False
    first: int = 1
    limits_s: tuple[float | None, ...] = (None, None, None)
    _waiting: list[Launch] = dataclasses.field(default_factory=list)

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        plan = super().plan(experiment, host, many=many)
        for trial, limit_s in zip(plan.trials, self.limits_s, strict=True):
            self._waiting.append(Launch(trial, at_most_s=limit_s, label=f"trying {_name(trial)}"))
        return dataclasses.replace(plan, chosen=())

    def next_launches(self, run: Run, remaining_s: float | None) -> Sequence[Launch]:
        size = 1 if run.results else self.first
        return [self._waiting.pop(0) for _ in range(min(size, len(self._waiting)))]

    def interim(self, run: Run) -> Interim:
        names = [_name(result.trial) for result in run.results]
        rows = [InterimRow(name=name, speedup=None, launches=1, is_best=name == names[-1]) for name in names]
        return Interim(f"the latest is {names[-1]}", tuple(rows))


def _name(trial: Trial) -> str:
    return f"batch {trial.rank_batch_size}"


def searched(study: BatchSearch, launcher: FakeLauncher | None = None, **asked: Any) -> RecordingWatcher:
    watcher = RecordingWatcher()
    prepared = prepare(study, ask("train", batch_size=BATCHES, **asked))
    run_study(prepared, launcher or FakeLauncher(CostModel()), watcher)
    return watcher


@pytest.mark.parametrize("first", [1, 3])
def test_a_search_answers_after_every_launch(first: int) -> None:
    watcher = searched(BatchSearch(first=first))
    assert [interim.text for interim in watcher.verdicts] == [f"the latest is batch {n}" for n in BATCHES]
    assert [[row.name for row in interim.rows] for interim in watcher.verdicts] == [
        ["batch 10"],
        ["batch 10", "batch 20"],
        ["batch 10", "batch 20", "batch 30"],
    ]
    best = [interim.best and interim.best.name for interim in watcher.verdicts]
    assert best == ["batch 10", "batch 20", "batch 30"]
    assert watcher.labels == [f"trying batch {batch}" for batch in BATCHES]
    assert watcher.begun == ([(0, 0), (1, 0), (1, 0), (1, 0)] if first == 1 else [(0, 0), (3, 0)])


def test_a_launch_that_fails_or_is_repeated_is_followed_by_an_answer_too() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="oom", reason="made up") if trial.rank_batch_size == 20 else None

    busy, quiet = (OtherLoad(cores=2, other_cores=cores, rank_waits=(cores / 2,)) for cores in (1.1, 0.0))
    launcher = FakeLauncher(
        CostModel(), outcomes=fail, loads=lambda trial, attempt: busy if attempt == 0 else quiet
    )
    watcher = searched(BatchSearch(), launcher)
    assert watcher.labels[:2] == ["trying batch 10", "trying batch 10"]
    assert len(watcher.verdicts) == len(watcher.launched) == len(BATCHES) + 1


def test_every_part_is_told_the_whole_budget_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = campaign_clock(monkeypatch, Clock())
    watcher = searched(BatchSearch(), FakeLauncher(CostModel(), outcomes=clock.launch), budget="25s")
    left_s = [25.0, 25.0, 15.0, 5.0]
    assert watcher.budgets == [Budget(total_s=25.0, left_s=seconds) for seconds in left_s]
    (note,) = [note for note in watcher.notes if "The budget" in note]
    assert " of 1 " not in note
    assert "ended the run before it was done" in note


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> TimedLauncher:
    """Launches of ten seconds; of a minute with the middle batch."""
    made: TimedLauncher = campaign_clock(
        monkeypatch, TimedLauncher({}, lambda trial: 60.0 if trial.rank_batch_size == 20 else 10.0)
    )
    return made


def why_ended() -> str | None:
    end = load_run("run").record.end
    return None if end is None else end.why


@pytest.mark.parametrize("budget", ["10m", "none"])
def test_a_launch_is_ended_at_its_limit_and_the_next_one_made(launcher: TimedLauncher, budget: str) -> None:
    watcher = searched(BatchSearch(limits_s=(15.0, 15.0, 15.0)), launcher, budget=budget)
    results = load_run("run").results
    assert [result.stopped_by for result in results] == [None, "budget", None]
    assert [result.status for result in results] == ["ok", "interrupted", "ok"]
    assert results[1].duration_s == pytest.approx(15.0)
    assert why_ended() == "finished"
    assert not any("The budget" in note for note in watcher.notes)


def test_the_deadline_is_that_of_the_launch_or_of_the_budget(launcher: TimedLauncher) -> None:
    searched(BatchSearch(limits_s=(15.0, 1000.0, 15.0)), launcher, budget="40s")
    assert launcher.deadlines == [1015.0]
    assert launcher.now_s == 1040.0  # the middle one was ended by the budget, and with it the run
    assert [result.stopped_by for result in load_run("run").results] == [None, "budget"]
    assert why_ended() == "budget"


@pytest.mark.parametrize(
    ("limits_s", "budget", "stopped", "ends_s"),
    [
        # What a study chose for the time that is left is not weighed again.
        ((15.0, 5.0, 9.0), "20s", [None, "budget", "budget"], 1020.0),
        # A launch without a limit that does not fit ends the run.
        ((None, 15.0, None), "30s", [None, "budget"], 1025.0),
    ],
)
def test_only_a_launch_with_a_limit_is_made_where_another_would_be_expected_to_take_too_long(
    launcher: TimedLauncher,
    limits_s: tuple[float | None, ...],
    budget: str,
    stopped: list[Any],
    ends_s: float,
) -> None:
    searched(BatchSearch(limits_s=limits_s), launcher, budget=budget)
    assert [result.stopped_by for result in load_run("run").results] == stopped
    assert launcher.now_s == ends_s
    if limits_s[-1] is None:
        assert why_ended() == "budget"
