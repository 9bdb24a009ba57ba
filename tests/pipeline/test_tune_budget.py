"""`tune` within its budget: what it says at any of them, launches that are cut short, kills and resumes."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.cli import app
from scalescope.errors import CannotRun, Interrupted
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local import launcher as local
from scalescope.results.run import load_run
from scalescope.results.run_record import newest_unfinished_run
from scalescope.studies.runs import resuming
from scalescope.studies.study import Report

from .recording import RecordingWatcher
from .tuning import (
    BF16,
    HELPING,
    JIT,
    LAUNCH_S,
    TimedLauncher,
    has,
    is_baseline,
    lever_of,
    measured,
    results_of,
    sentence,
    stages,
    statuses,
    timed,
    tuned,
    tuning_of,
)

BUDGETS_S = (30, 45, 60, 90, 120, 180, 300, 600)


def check_answer(report: Report) -> None:
    """There is an answer, and what it says is in the table."""
    tuning = tuning_of(report)
    assert report.exit_code == 0
    if tuning["recommended"]:
        assert " is faster: " in sentence(report)
        row = measured(report)[tuple(tuning["winner"])]
        assert row["speedup"] > 1.0
        assert row["ci95_speedup"][0] > 1.0
    else:
        assert sentence(report).startswith(("Nothing that was tried beats", "Nothing was shown to be faster"))
        assert all(row["verdict"] != "faster" for row in tuning["combinations"])


@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_every_budget_ends_with_an_answer_and_is_kept(budget_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch, HELPING)
    report = tuned(HELPING, launcher=launcher, budget=f"{budget_s}s")
    check_answer(report)
    assert launcher.now_s <= 1000.0 + budget_s
    assert is_baseline(results_of()[0].trial)
    if budget_s > 30:
        assert tuning_of(report)["recommended"]
        assert "precision bf16" in tuning_of(report)["winner"]
    if budget_s >= 120:
        assert tuning_of(report)["winner"] == ["jit True", "precision bf16"]


@pytest.mark.parametrize("budget_s", [45, 75])
def test_a_search_that_its_budget_ended_goes_on_where_it_was(
    budget_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = timed(monkeypatch, HELPING)
    part = tuned(HELPING, launcher=launcher, budget=f"{budget_s}s")
    before = results_of()
    assert tuning_of(part)["finished"] is False
    assert part.sections[0].lines[-1].startswith("The search is not over; --resume")
    rest = tuned(HELPING, launcher=launcher, budget="1h", resume=True)
    assert results_of()[: len(before)] == before
    assert tuning_of(rest)["finished"] is True
    assert tuning_of(rest)["winner"] == ["jit True", "precision bf16"]
    assert stages().count("baseline") == 1
    explored = [r.trial_id for r in results_of() if r.stage is not None and r.stage.kind == "explore"]
    assert len(explored) == len(set(explored))
    assert set(statuses(rest)) == set(statuses(part))


def test_a_finished_search_is_resumed_without_a_launch() -> None:
    first = tuned(HELPING)
    watcher = RecordingWatcher()
    again = tuned(HELPING, resume=True, watcher=watcher)
    assert watcher.launched == []
    assert tuning_of(again) == tuning_of(first)


@pytest.mark.parametrize("killed_at", [0, 1, 3, 6, 9])
def test_an_interrupted_search_is_resumed_to_the_same_winner(killed_at: int) -> None:
    made: list[int] = []

    def interrupt(trial: Trial, launch: int) -> Outcome | None:
        made.append(launch)
        if len(made) == killed_at + 1:
            raise Interrupted(2)
        return None

    with pytest.raises(Interrupted):
        tuned(HELPING, outcomes=interrupt)
    run = load_run("run")
    assert [result.status for result in run.results] == ["ok"] * killed_at + ["interrupted"]
    rest = tuned(HELPING, resume=True)
    assert rest.exit_code == 0
    assert tuning_of(rest)["winner"] == ["jit True", "precision bf16"]
    assert (tuning_of(rest)["recommended"], tuning_of(rest)["finished"]) == (True, True)
    assert {result.status for result in results_of()} == {"ok"}
    keys = [result.key for result in results_of()]
    assert len(keys) == len(set(keys))


def slow(*pairs: tuple[str, object], seconds: float) -> Any:
    def launch_s(trial: Trial) -> float:
        return seconds if has(trial, *pairs) else LAUNCH_S

    return launch_s


def test_a_lever_that_takes_too_long_is_ended_and_the_search_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As compiling may: the time for confirming is kept, and the lever is not tried in vain again."""
    launcher = timed(monkeypatch, HELPING, launch_s=slow(JIT, seconds=1000.0))
    report = tuned(HELPING, "precision", "jit", launcher=launcher, budget="180s")
    check_answer(report)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert launcher.now_s <= 1180.0
    jit = lever_of(report, "jit True")
    assert (jit["status"], jit["speedup"]) == ("undecided", None)
    assert jit["reason"].startswith("ended after ")
    cut = [result for result in results_of() if result.stopped_by == "budget"]
    assert len(cut) == 1
    assert tuning_of(report)["finished"] is False


def test_a_lever_that_took_too_long_is_tried_again_with_a_larger_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = timed(monkeypatch, HELPING, launch_s=slow(JIT, seconds=200.0))
    tuned(HELPING, "precision", "jit", launcher=launcher, budget="180s")
    report = tuned(HELPING, "precision", "jit", launcher=launcher, budget="1h", resume=True)
    assert tuning_of(report)["winner"] == ["jit True", "precision bf16"]


def test_a_winner_is_kept_when_its_last_launch_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second launch of bf16 takes longer than the first, and than what is left of the budget."""
    counts: list[str] = []

    def launch_s(trial: Trial) -> float:
        counts.append(trial.trial_id)
        return 1000.0 if has(trial, BF16) and counts.count(trial.trial_id) == 2 else LAUNCH_S

    launcher = timed(monkeypatch, {(BF16,): 0.5}, launch_s=launch_s)
    report = tuned({}, "precision", launcher=launcher, budget="60s")
    assert results_of()[-1].stopped_by == "budget"
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert lever_of(report, "precision bf16")["status"] == "recommended"
    check_answer(report)


def test_a_budget_below_one_launch_is_an_error_that_says_what_would_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = timed(monkeypatch, HELPING, launch_s=lambda trial: 100.0)
    with pytest.raises(CannotRun, match=r"before any launch was finished.*--budget"):
        tuned(HELPING, launcher=launcher, budget="30s")
    report = tuned(HELPING, launcher=launcher, budget="20m", resume=True)
    assert tuning_of(report)["recommended"]


def test_a_budget_for_the_baseline_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch, HELPING, launch_s=lambda trial: 20.0)
    report = tuned(HELPING, launcher=launcher, budget="30s")
    assert report.exit_code == 0
    assert sentence(report) == (
        "Only the current settings could be measured; a larger --budget allows to try levers."
    )


def test_launches_are_limited_so_that_the_winner_can_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch, HELPING)
    tuned(HELPING, launcher=launcher, budget="120s")
    ends_s = 1000.0 + 120.0
    limits = [deadline for deadline in launcher.deadlines if deadline is not None]
    assert len(limits) == len(launcher.deadlines)
    assert all(limit <= ends_s for limit in limits)
    explored = [limit for limit, kind in zip(limits, stages(), strict=True) if kind == "explore"]
    assert min(explored) < ends_s - LAUNCH_S


def test_without_a_budget_the_search_ends_by_itself() -> None:
    launcher = TimedLauncher(HELPING)
    report = tuned(HELPING, launcher=launcher, budget="none")
    assert set(launcher.deadlines) == {None}
    assert tuning_of(report)["finished"] is True
    assert Path("run/tuned.yaml").exists()


@pytest.mark.parametrize(("budget", "why"), [("1h", "finished"), ("75s", "budget")])
def test_the_record_says_why_the_search_ended(budget: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next launch does not fit into what is left, so that it is not even begun."""
    tuned(HELPING, launcher=timed(monkeypatch, HELPING), budget=budget)
    end = load_run("run").record.end
    assert end is not None and end.why == why
    unfinished = newest_unfinished_run("tune", Path())
    assert (unfinished is not None) == (why == "budget")


def test_the_printed_command_goes_on_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch, HELPING, launch_s=lambda trial: 20.0)
    report = tuned(HELPING, launcher=launcher, budget="30s")
    assert report.next_step is not None
    assert report.next_step.argv[:2] == ("scalescope", "resume")
    monkeypatch.setattr(local, "LocalLauncher", lambda: launcher)
    monkeypatch.setattr(resuming, "_refuse_other_machine", lambda path: None)  # the machine is made up
    with pytest.raises(SystemExit) as leaving:
        app.main(list(report.next_step.argv[1:]))
    assert not leaving.value.code
    run = load_run("run")
    assert len(run.results) > 5
    assert "jit True + precision bf16" in Path("run/tuning.json").read_text()
