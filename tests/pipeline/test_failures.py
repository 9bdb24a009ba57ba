"""Failure is data: a sweep continues, and the exit code names the kind of failure."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from scalescope.errors import BadInput, Interrupted, StorageError
from scalescope.experiment.explanations import explained_job
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import Status
from scalescope.results.run import load_run
from scalescope.studies.study import Report
from tests.builders.studies import scale, standard_run, train
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(exposed_comm_s={2: 0.004, 4: 0.012})
CODES: list[tuple[Status, int]] = [("failed", 4), ("oom", 4), ("hang", 5), ("invalid", 6)]


def failing(status: Status, ranks: int = 2) -> Callable[[Trial, int], Outcome | None]:
    """Every launch on that many ranks ends so."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if trial.world_size != ranks:
            return None
        return Outcome(status=status, reason="made up", rank=1, step=7, log="logs/x.log")

    return outcome


@pytest.mark.parametrize(("status", "code"), CODES)
def test_a_sweep_with_failures_finishes_and_lists_them(status: Status, code: int) -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(MODEL, outcomes=failing(status))
    report = scale(ask("scale", world_size=[1, 2, 4], batch_size=50), launcher, watcher)
    assert report.exit_code == code
    training = summary_of(report.path)["results"]["training"]
    assert {row["world_size"] for row in training if row["status"] == "ok"} == {1, 4}
    failed = [row for row in training if row["status"] != "ok"]
    assert {
        (row["world_size"], row["status"], row["reason"], row["rank"], row["step"]) for row in failed
    } == {(2, status, "made up", 1, 7)}
    assert [row["world_size"] for row in summary_of(report.path)["results"]["scaling"]] == [1, 4]
    (section,) = [section for section in report.sections if section.title == "Failed"]
    tried = {trial.trial_id: trial for trial, _ in watcher.launched if trial.world_size == 2}
    assert len(tried) == 4  # training, the same without communication and recorded, and an exchange
    assert report.sections[0] is section
    said = [
        trial for trial in tried.values() if explained_job(trial) is None
    ]  # others only explain the first
    assert {trial.benchmark for trial in said} == {"train", "comm"}
    assert set(section.lines) == {
        f"{trial.label} [{trial.trial_id}]: {status}: made up; log: logs/x.log" for trial in said
    }


@pytest.mark.parametrize(("status", "tries"), [("failed", 2), ("hang", 2), ("oom", 1), ("invalid", 1)])
def test_a_trial_that_keeps_failing_is_not_launched_again(status: Status, tries: int) -> None:
    watcher = RecordingWatcher()
    train(ask("train", world_size=[1, 2], repeats=5), FakeLauncher(MODEL, outcomes=failing(status)), watcher)
    ranks = [trial.world_size for trial, _ in watcher.launched]
    assert (ranks.count(1), ranks.count(2)) == (5, tries)
    notes = [note for note in watcher.notes if note.startswith("Gave up")]
    assert notes == [f"Gave up on ddp, 2 ranks, batch 256: {5 - tries} more launches not run."]


def test_one_failed_launch_does_not_stop_the_others_whatever_its_message_holds() -> None:
    def once(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="no file \udcff\ud800.bin") if launch == 1 else None

    report = train(ask("train", repeats=3), FakeLauncher(MODEL, outcomes=once), RecordingWatcher())
    assert report.exit_code == 4
    run = load_run("run")
    assert run.warnings == ()
    assert [result.status for result in run.results] == ["ok", "failed", "ok"]
    assert run.results[1].reason == "no file \\udcff\\ud800.bin"


def test_a_run_in_which_everything_failed_still_has_a_summary() -> None:
    report = train(
        ask("train", world_size=2), FakeLauncher(MODEL, outcomes=failing("failed")), RecordingWatcher()
    )
    assert report.exit_code == 4
    assert [row["status"] for row in summary_of(report.path)["results"]["training"]] == ["failed"]
    report = scale(
        ask("scale", output_dir="other", world_size=2),
        FakeLauncher(MODEL, outcomes=failing("failed")),
        RecordingWatcher(),
    )
    assert report.exit_code == 4
    assert summary_of(report.path)["results"]["scaling"] == []


def test_only_an_unstable_run_ends_6_and_only_when_strict() -> None:
    stable = train(ask("train", repeats=5, strict=True), FakeLauncher(MODEL), RecordingWatcher())
    assert stable.exit_code == 0
    noisy = FakeLauncher(CostModel(launch_noise=0.2))
    calm = train(ask("train", repeats=5, output_dir="a"), noisy, RecordingWatcher())
    strict = train(ask("train", repeats=5, output_dir="b", strict=True), noisy, RecordingWatcher())
    assert (calm.exit_code, strict.exit_code) == (0, 6)
    assert any("noisy: launches differ by" in line for line in calm.sections[0].lines)
    (training,) = summary_of(calm.path)["results"]["training"]
    assert training["warnings"][0].startswith("noisy: launches differ by")


@pytest.mark.parametrize(
    ("study", "signum"),
    [(train, signal.SIGINT), (scale, signal.SIGTERM), (standard_run, signal.SIGHUP)],
)
@pytest.mark.usefixtures("without_page")
def test_an_interruption_is_recorded_and_raised_again(
    study: Callable[..., Report], signum: signal.Signals
) -> None:
    calls: list[int] = []

    def interrupt(trial: Trial, launch: int) -> Outcome | None:
        calls.append(launch)
        if len(calls) == 4:
            raise Interrupted(signum)
        return None

    launcher = FakeLauncher(MODEL, outcomes=interrupt)
    with pytest.raises(Interrupted) as caught:
        study(ask("train", world_size=[1, 2], batch_size=50, repeats=5), launcher, RecordingWatcher())
    assert caught.value.exit_code == 128 + signum
    assert caught.value.kept.startswith("finished launches are kept; scalescope ")
    assert caught.value.kept.endswith(f"scalescope resume {Path('run').absolute()} continues")
    results = load_run("run").results
    assert [result.status for result in results] == ["ok", "ok", "ok", "interrupted"]
    assert results[-1].reason == f"interrupted by {signum.name}"
    summary = summary_of(Path("run"))
    statuses = [row["status"] for row in summary["results"]["training"]]
    assert statuses.count("interrupted") == 1
    assert "ok" in statuses
    launcher = FakeLauncher(MODEL)
    request = ask("train", world_size=[1, 2], batch_size=50, repeats=5, resume=True)
    again = study(request, launcher, RecordingWatcher())
    assert again.exit_code == 0
    assert results[-1].key in launcher.launched
    assert not {result.key for result in results[:-1]} & set(launcher.launched)
    assert {result.status for result in load_run("run").results} == {"ok"}


def test_a_full_disk_ends_7_and_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write = os.write

    def fill_the_disk(trial: Trial, launch: int) -> Outcome | None:
        if launch == 2:
            monkeypatch.setattr(os, "write", lambda descriptor, line: whole_write(descriptor, line[:9]))
        return None

    with pytest.raises(StorageError) as caught:
        train(ask("train", repeats=5), FakeLauncher(MODEL, outcomes=fill_the_disk), RecordingWatcher())
    monkeypatch.setattr(os, "write", whole_write)
    assert [result.launch for result in load_run("run").results] == [0, 1]
    assert caught.value.exit_code == 7
    assert str(caught.value) == "run/trials.jsonl: could not be written: No space left on device"


def test_a_disk_too_full_for_the_summary_frees_the_folder() -> None:
    disk = pytest.MonkeyPatch()

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk(trial: Trial, launch: int) -> Outcome | None:
        disk.setattr(Path, "replace", refuse)
        return None

    with pytest.raises(StorageError) as caught:
        train(ask("train"), FakeLauncher(MODEL, outcomes=fill_the_disk), RecordingWatcher())
    disk.undo()
    assert caught.value.exit_code == 7
    report = train(ask("train", resume=True), FakeLauncher(MODEL), RecordingWatcher())
    assert report.exit_code == 0


def refusing(*batches: int) -> Callable[[Trial, int], Outcome | None]:
    """Ranks find the request wrong at these batches, each for the same reason."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if trial.rank_batch_size not in batches:
            return None
        return Outcome(status="failed", reason="your data is odd", bad_input=True, log="logs/x.log")

    return outcome


def test_a_request_that_no_rank_can_do_is_bad_input_and_ends_early() -> None:
    launcher = FakeLauncher(MODEL, outcomes=refusing(10, 20, 30))
    watcher = RecordingWatcher()
    with pytest.raises(BadInput, match=r"^your data is odd \(log: logs/x.log\)$"):
        train(ask("train", batch_size=[10, 20, 30], repeats=3), launcher, watcher)
    assert len(launcher.launched) == 2  # the second said the same as the first
    assert not watcher.results
    assert {result.status for result in load_run("run").results} == {"failed"}


def test_a_trial_refused_by_its_ranks_stops_neither_the_sweep_nor_its_resumption() -> None:
    for resume in (False, True):
        launcher = FakeLauncher(MODEL, outcomes=refusing(10))
        watcher = RecordingWatcher()
        asked = ask("train", batch_size=[10, 20, 30], repeats=2, resume=resume)
        report = train(asked, launcher, watcher)
        assert report.exit_code == 4
        assert sum(result.status == "ok" for result in load_run("run").results) == 4
        assert [result.reason for result in watcher.results if result.status == "failed"] == [
            "your data is odd"
        ]
    assert len(launcher.launched) == 1  # resuming asks the refused trial once more and nothing else


def test_a_summary_that_cannot_be_written_is_an_error_and_costs_no_other_file() -> None:
    Path("run/results.json").mkdir(parents=True)
    with pytest.raises(StorageError):
        train(ask("train", batch_size=50), FakeLauncher(MODEL), RecordingWatcher())
    assert Path("run/performance_report.txt").is_file()
    end = load_run("run").record.end
    assert end is not None and end.why == "failed"


def test_sections_that_cannot_be_made_leave_the_summary_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("scalescope.report.training.sections.training_sections", fail)
    with pytest.raises(ZeroDivisionError):
        train(ask("train", batch_size=50), FakeLauncher(MODEL), RecordingWatcher())
    assert summary_of(Path("run"))["results"]["training"]
    end = load_run("run").record.end
    assert end is not None and end.why == "failed"
