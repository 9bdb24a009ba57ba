"""`tune` with launches that fail, or train to another loss: a lever may fail, the baseline must work."""

from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome

from .recording import RecordingWatcher
from .tuning import (
    BF16,
    HELPING,
    HOOK,
    JIT,
    has,
    is_baseline,
    lever_of,
    measured,
    results_of,
    sentence,
    statuses,
    table,
    tuned,
    tuning_of,
    with_loss,
)


@pytest.mark.parametrize("status", ["failed", "hang", "oom", "invalid"])
def test_a_lever_that_fails_is_a_row_and_the_search_goes_on(status: Any) -> None:
    watcher = RecordingWatcher()

    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="it broke") if has(trial, JIT) else None

    report = tuned(HELPING, outcomes=fail, watcher=watcher)
    assert report.exit_code == 0
    jit = lever_of(report, "jit True")
    assert (jit["status"], jit["reason"], jit["speedup"]) == ("failed", f"{status}: it broke", None)
    (row,) = [row for row in table(report, "Levers") if row["lever"] == "jit True"]
    assert row["result"] == f"{status}: it broke"
    assert sum(has(trial, JIT) for trial, _ in watcher.launched) == 1  # never launched again
    assert all("jit True" not in levers for levers in measured(report))
    tuning = tuning_of(report)
    assert (tuning["winner"], tuning["recommended"], tuning["finished"]) == (["precision bf16"], True, True)


def test_every_lever_may_fail() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return None if is_baseline(trial) else Outcome(status="oom", reason="too large")

    report = tuned(HELPING, outcomes=fail)
    assert report.exit_code == 0
    assert sentence(report) == (
        "Only the current settings could be measured; every lever that was tried failed."
    )
    assert set(statuses(report).values()) <= {"failed", "unpromising"}
    assert tuning_of(report)["finished"] is True


def test_a_combination_that_fails_leaves_what_works() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="it broke") if has(trial, BF16, JIT) else None

    report = tuned(HELPING, "precision", "jit", outcomes=fail)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert lever_of(report, "jit True")["added_to"] == ["precision bf16"]


def test_a_winner_that_fails_when_it_is_confirmed_is_not_recommended() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        late = has(trial, BF16, JIT) and launch > 0
        return Outcome(status="failed", reason="lost") if late else None

    report = tuned(HELPING, "precision", "jit", outcomes=fail)
    tuning = tuning_of(report)
    assert tuning["winner"] == ["precision bf16"]
    row = measured(report)["jit True", "precision bf16"]
    assert row["failure"] == "failed: lost"
    lines = report.sections[0].lines
    assert any(line.startswith("jit True + precision bf16 was faster") for line in lines)
    assert any("a launch of it failed (failed: lost)" in line for line in lines)


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_baseline_that_fails_is_an_error(status: Any) -> None:
    watcher = RecordingWatcher()

    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="it broke") if is_baseline(trial) else None

    report = tuned(HELPING, outcomes=fail, watcher=watcher)
    assert report.exit_code == 4
    assert sentence(report) == f"The current settings could not be measured: {status}: it broke"
    assert report.next_step is None
    assert all(is_baseline(trial) for trial, _ in watcher.launched)
    assert len(watcher.launched) == (2 if status == "failed" else 1)


def test_one_failure_of_the_baseline_by_chance_is_none() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="by chance") if is_baseline(trial) and launch == 0 else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert tuning_of(report)["recommended"] is True


def test_a_baseline_that_fails_late_does_not_lose_what_was_measured() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="oom", reason="too large") if is_baseline(trial) and launch == 1 else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert report.exit_code == 4
    assert ("precision bf16",) in measured(report)
    assert "1.4" in " ".join(report.sections[0].lines)


def test_a_lever_whose_loss_differs_is_never_recommended() -> None:
    report = tuned(HELPING, "precision", outcomes=with_loss(5.0, BF16))
    tuning = tuning_of(report)
    assert (tuning["winner"], tuning["recommended"]) == ([], False)
    assert sentence(report) == "Nothing that was tried can be recommended."
    (line,) = [line for line in report.sections[0].lines if "its loss differs" in line]
    assert line.startswith("precision bf16 was faster (1.4") and line.endswith("not recommended.")
    assert lever_of(report, "precision bf16")["status"] == "loss differs"
    (row,) = [row for row in table(report, "Measured") if row["settings"] == "precision bf16"]
    assert row["remark"] == "the loss differs"
    assert report.next_step is None


def test_a_combination_whose_loss_differs_is_left_out() -> None:
    report = tuned(HELPING, "precision", "jit", outcomes=with_loss(5.0, BF16, JIT))
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert lever_of(report, "jit True")["status"] == "loss differs"
    (row,) = [row for row in table(report, "Levers") if row["lever"] == "jit True"]
    assert row["result"] == "left out: the loss differs"


def test_other_levers_are_tried_where_the_loss_of_one_differs() -> None:
    report = tuned({**HELPING, (BF16, HOOK): 1.0}, outcomes=with_loss(5.0, BF16))
    assert tuning_of(report)["winner"] == ["comm_hook fp16", "jit True"]
    assert sum(result.settings["precision"] == "bf16" for result in results_of()) == 1


def test_another_job_that_fails_is_left_out_and_the_others_are_compared() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        large = trial.settings["batch_size"] > 1000
        return Outcome(status="oom", reason="too large") if large else None

    report = tuned({}, "batch_size=512", "batch_size=2048", outcomes=fail)
    assert report.exit_code == 0
    assert [job["job"] for job in tuning_of(report)["other_jobs"]] == ["batch_size 512", "now"]
    assert sum(result.status == "oom" for result in results_of()) == 1
