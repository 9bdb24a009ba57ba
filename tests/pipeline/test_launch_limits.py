"""Launches that may take only so long: they are ended then, and the run goes on."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.results.run import Run, load_run
from scalescope.studies import campaign
from scalescope.studies.execution import run_study
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import Host
from scalescope.studies.training.train import TrainStudy

from .recording import RecordingWatcher, ask
from .tuning import TimedLauncher

BATCHES = [10, 20, 30]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitedLaunches(TrainStudy):
    """One batch size after the other, each with its limit."""

    breakdown: bool = False
    limits_s: tuple[float | None, ...] = ()

    def plan(self, request: Request, host: Host) -> Plan:
        plan = super().plan(request, host)
        self._trials.extend(plan.trials)
        return dataclasses.replace(plan, chosen=())

    def next_launches(self, run: Run, remaining_s: float | None) -> Sequence[Launch]:
        made = len(run.results)
        if made == len(self._trials):
            return ()
        return (Launch(self._trials[made], at_most_s=self.limits_s[made]),)

    _trials: list[Any] = dataclasses.field(default_factory=list)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> TimedLauncher:
    """Launches of ten seconds; of a minute with the middle batch."""
    made = TimedLauncher({}, launch_s=lambda trial: 60.0 if trial.rank_batch_size == 20 else 10.0)
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def launched(
    launcher: TimedLauncher, *limits_s: float | None, watcher: RecordingWatcher | None = None, **asked: Any
) -> None:
    study = LimitedLaunches(limits_s=limits_s)
    run_study(study, ask("train", batch_size=BATCHES, **asked), launcher, watcher or RecordingWatcher())


@pytest.mark.parametrize("budget", ["10m", "none"])
def test_a_launch_is_ended_at_its_limit_and_the_next_one_made(launcher: TimedLauncher, budget: str) -> None:
    watcher = RecordingWatcher()
    launched(launcher, 15.0, 15.0, 15.0, budget=budget, watcher=watcher)
    run = load_run("run")
    assert [result.stopped_by for result in run.results] == [None, "budget", None]
    assert [result.status for result in run.results] == ["ok", "interrupted", "ok"]
    assert run.results[1].duration_s == pytest.approx(15.0)
    assert run.record.end is not None and run.record.end.why == "finished"
    assert not any("The budget" in note for note in watcher.notes)


def test_the_deadline_is_that_of_the_launch_or_of_the_budget(launcher: TimedLauncher) -> None:
    launched(launcher, 15.0, 1000.0, 15.0, budget="40s")
    assert launcher.deadlines == [1015.0]
    assert launcher.now_s == 1040.0  # the middle one was ended by the budget, and with it the run
    run = load_run("run")
    assert [result.stopped_by for result in run.results] == [None, "budget"]
    assert run.record.end is not None and run.record.end.why == "budget"


def test_a_launch_with_a_limit_is_made_where_another_would_be_expected_to_take_too_long(
    launcher: TimedLauncher,
) -> None:
    """What a study chose for the time that is left is not weighed again."""
    launched(launcher, 15.0, 5.0, 9.0, budget="20s")
    assert len(load_run("run").results) == 3
    (first, second, third) = load_run("run").results
    assert (first.status, second.stopped_by, third.stopped_by) == ("ok", "budget", "budget")
    assert launcher.now_s <= 1020.0


def test_a_launch_without_a_limit_that_does_not_fit_ends_the_run(launcher: TimedLauncher) -> None:
    launched(launcher, None, 15.0, None, budget="30s")
    run = load_run("run")
    assert [result.stopped_by for result in run.results] == [None, "budget"]
    assert launcher.now_s == 1025.0
    assert run.record.end is not None and run.record.end.why == "budget"
