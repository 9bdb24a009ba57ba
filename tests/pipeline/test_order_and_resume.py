"""The order of launches, the budget, and resuming a run that was stopped."""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.run import load_run
from scalescope.results.run_record import RunEnd
from scalescope.studies.stored import recorded_host
from scalescope.studies.study import Report
from tests.builders.studies import scale, standard_run, train
from tests.builders.timed_launches import Clock, campaign_clock
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(exposed_comm_s={2: 0.004, 4: 0.012})
SWEEP: dict[str, Any] = {"batch_size": [10, 20, 30, 40, 50, 60], "repeats": 4}

Order = list[tuple[str, int]]


def order_of(**asked: Any) -> Order:
    launcher = FakeLauncher(MODEL)
    train(ask("train", **asked), launcher, RecordingWatcher())
    return launcher.launched


def test_launches_come_in_rounds_each_shuffled_on_its_own_by_a_seed() -> None:
    order = order_of(**SWEEP, order_seed=7, output_dir="a")
    rounds = [order[start : start + 6] for start in range(0, 24, 6)]
    for number, members in enumerate(rounds):
        assert {launch for _, launch in members} == {number}
        assert len({trial for trial, _ in members}) == 6
    assert len({tuple(trial for trial, _ in members) for members in rounds}) > 1
    recorded = sorted(load_run("a").results, key=lambda result: result.order)
    assert [result.key for result in recorded] == order
    assert "order_seed: 7\n" in Path("a/experiment.yaml").read_text()
    assert order_of(**SWEEP, order_seed=7, output_dir="b") == order
    other = order_of(**SWEEP, order_seed=8, output_dir="c")
    assert order != other and sorted(order) == sorted(other)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made: Clock = campaign_clock(monkeypatch, Clock())
    return made


def test_the_budget_stops_between_launches_and_cuts_only_the_last_round(clock: Clock) -> None:
    launcher = FakeLauncher(MODEL, outcomes=clock.launch)
    watcher = RecordingWatcher()
    report = train(ask("train", batch_size=[10, 20, 30], repeats=5, budget="75s"), launcher, watcher)
    assert len(launcher.launched) == 7
    counts = Counter(trial for trial, _ in launcher.launched)
    assert sorted(counts.values()) == [2, 2, 3]
    assert report.run is not None
    assert load_run("run").record.end == RunEnd(
        why="budget", missing=8, failed=0, budget_s=75.0, next_launch_s=10.0, rest_s=80.0, start_s=0.0
    )
    (note,) = (note for note in watcher.notes if "8 of 15 launches" in note)
    assert f"scalescope resume {Path('run').absolute()} --budget 2m continues" in note
    assert report.exit_code == 0


def test_resume_runs_only_what_is_missing() -> None:
    def fail_some(trial: Trial, launch: int) -> Outcome | None:
        failed = trial.rank_batch_size == 10 and launch == 1
        return Outcome(status="failed", reason="lost") if failed else None

    first = FakeLauncher(MODEL, outcomes=fail_some)
    assert train(ask("train", batch_size=[10, 20], repeats=3), first, RecordingWatcher()).exit_code == 4
    second, watcher = FakeLauncher(MODEL), RecordingWatcher()
    report = train(ask("train", batch_size=[10, 20], repeats=3, resume=True), second, watcher)
    assert watcher.begun == [(6, 5)]
    assert [(trial.rank_batch_size, launch) for trial, launch in watcher.launched] == [(10, 1)]
    assert report.exit_code == 0
    assert {row["status"] for row in summary_of(report.path)["results"]["training"]} == {"ok"}
    before = Path("run/trials.jsonl").read_bytes()
    third = FakeLauncher(MODEL)  # of a run that is finished
    train(ask("train", batch_size=[10, 20], repeats=3, resume=True), third, RecordingWatcher())
    assert third.launched == []
    assert Path("run/trials.jsonl").read_bytes() == before


@pytest.mark.parametrize("status", ["oom", "invalid"])
def test_resume_does_not_repeat_launches_that_will_fail_the_same_way(status: str) -> None:
    def answer(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="answer") if trial.world_size == 2 else None  # type: ignore[arg-type]

    asked: dict[str, Any] = {"world_size": [1, 2], "repeats": 4}
    train(ask("train", **asked), FakeLauncher(MODEL, outcomes=answer), RecordingWatcher())
    launcher = FakeLauncher(MODEL, outcomes=answer)
    train(ask("train", **asked, resume=True), launcher, RecordingWatcher())
    assert launcher.launched == []


def test_resume_may_add_repeats() -> None:
    train(ask("train", repeats=2), FakeLauncher(MODEL), RecordingWatcher())
    launcher = FakeLauncher(MODEL)
    train(ask("train", repeats=5, resume=True), launcher, RecordingWatcher())
    assert [launch for _, launch in launcher.launched] == [2, 3, 4]
    assert "repeats: 5\n" in Path("run/experiment.yaml").read_text()


def test_resume_with_other_settings_is_refused() -> None:
    train(ask("train", batch_size=10), FakeLauncher(MODEL), RecordingWatcher())
    files = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    launcher = FakeLauncher(MODEL)
    for other in ({"batch_size": 20}, {"batch_size": 10, "order_seed": 3}, {"batch_size": [10, 20]}):
        with pytest.raises(BadInput) as caught:
            train(ask("train", **other, resume=True), launcher, RecordingWatcher())
        assert caught.value.exit_code == 2
        changed = "order_seed" if "order_seed" in other else "batch_size"
        assert f"different settings: {changed} (" in str(caught.value)
    assert launcher.launched == []
    assert {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == files


def test_resume_on_another_machine_is_refused() -> None:
    asked: dict[str, Any] = {"threads_per_rank": 1}
    train(ask("train", **asked), FakeLauncher(MODEL), RecordingWatcher())
    files = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    launcher = FakeLauncher(MODEL, dataclasses.replace(TWO_CORES, cores=64))
    with pytest.raises(CannotRun) as caught:
        train(ask("train", **{**asked, "repeats": 3}, resume=True), launcher, RecordingWatcher())
    assert caught.value.exit_code == 3
    assert "cores (2, now 64)" in str(caught.value)
    assert launcher.launched == []
    assert {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == files


def test_resume_on_another_node_of_the_same_type_keeps_the_environment_id() -> None:
    train(ask("train", repeats=2), FakeLauncher(MODEL), RecordingWatcher())
    record = json.loads(Path("run/environment.json").read_text())
    record["nodes"]["fake"]["driver_version"] = "535"
    Path("run/environment.json").write_text(json.dumps(record))
    assert TWO_CORES.memory_bytes is not None
    other_node = dataclasses.replace(TWO_CORES, host="other", memory_bytes=TWO_CORES.memory_bytes - 3 * 4096)
    launcher = FakeLauncher(MODEL, other_node)
    for repeats in (3, 4):
        train(ask("train", repeats=repeats, resume=True), launcher, RecordingWatcher())
    assert len(launcher.launched) == 2
    (stored,) = {result.environment_id for result in load_run("run").results}
    record = json.loads(Path("run/environment.json").read_text())
    assert record["environment_id"] == stored
    assert list(record["nodes"]) == ["fake", "other"]
    assert record["starts"] == [["fake"], ["other"]]
    assert list(record["systems"]) == ["fake", "other"]
    assert recorded_host(Path("run"), repeatable=True, ranks=None).nodes == 1  # the plan is one start's


def test_only_results_of_a_recorded_machine_bind_a_run_to_it() -> None:
    train(ask("train", repeats=2, threads_per_rank=1), FakeLauncher(MODEL), RecordingWatcher())
    recorded = Path("run/environment.json").read_text()
    Path("run/environment.json").unlink()
    other = FakeLauncher(MODEL, dataclasses.replace(TWO_CORES, host="other", cpu_model="another"))
    request = ask("train", repeats=3, resume=True, threads_per_rank=1)
    with pytest.raises(CannotRun, match="these differ: what the run does not say"):
        train(request, other, RecordingWatcher())
    Path("run/environment.json").write_text(recorded)
    Path("run/trials.jsonl").unlink()
    train(request, other, RecordingWatcher())
    record = json.loads(Path("run/environment.json").read_text())
    assert list(record["nodes"]) == ["other"]
    assert {result.environment_id for result in load_run("run").results} == {record["environment_id"]}


def test_a_run_ended_by_its_budget_goes_on_and_notes_only_what_is_left_to_do(clock: Clock) -> None:
    asked: dict[str, Any] = {"batch_size": [10, 20], "repeats": 3}
    first = FakeLauncher(MODEL, outcomes=clock.launch)
    train(ask("train", **asked, budget="30s"), first, RecordingWatcher())
    again, watcher = FakeLauncher(MODEL, outcomes=clock.launch), RecordingWatcher()
    train(ask("train", **asked, budget="10s", resume=True), again, watcher)
    assert len(again.launched) == 1
    end = load_run("run").record.end
    assert end is not None and (end.why, end.missing, end.budget_s) == ("budget", 2, 10.0)
    assert any("2 of 6 launches" in note for note in watcher.notes)
    last, watcher = FakeLauncher(MODEL, outcomes=clock.launch), RecordingWatcher()
    train(ask("train", **asked, budget="20s", resume=True), last, watcher)  # which suffices
    assert len(last.launched) == 2
    assert len({*first.launched, *again.launched, *last.launched}) == 6
    assert not any("budget" in note for note in watcher.notes)


def test_an_existing_run_without_resume_and_resume_without_a_run_are_refused() -> None:
    for output_dir in ("nowhere", None):
        with pytest.raises(BadInput, match="--resume") as caught:
            train(ask("train", output_dir=output_dir, resume=True), FakeLauncher(MODEL), RecordingWatcher())
        assert caught.value.exit_code == 2
    assert list(Path().iterdir()) == []
    train(ask("train"), FakeLauncher(MODEL), RecordingWatcher())
    before = Path("run/trials.jsonl").read_bytes()
    launcher = FakeLauncher(MODEL)
    with pytest.raises(BadInput, match="use --resume to continue it") as caught:
        train(ask("train"), launcher, RecordingWatcher())
    assert caught.value.exit_code == 2
    assert launcher.launched == []
    assert Path("run/trials.jsonl").read_bytes() == before


def test_every_launch_has_the_end_of_the_budget_as_its_deadline(clock: Clock) -> None:
    launcher = FakeLauncher(MODEL, outcomes=clock.launch)
    request = dataclasses.replace(ask("train", repeats=2, budget="60s"), started_s=995.0)
    train(request, launcher, RecordingWatcher())
    assert launcher.deadlines == [1055.0, 1055.0]  # what came before the campaign counts
    without = FakeLauncher(MODEL)
    train(ask("train", output_dir="other"), without, RecordingWatcher())
    assert without.deadlines == [None]


def ended_by_budget(trial: Trial, launch: int) -> Outcome | None:
    """The third launch is the one that the budget ends."""
    is_last = launch == 2
    return Outcome(status="interrupted", reason="spent", stopped_by="budget") if is_last else None


def test_a_launch_that_the_budget_ends_is_recorded_and_repeated_by_resume() -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(MODEL, outcomes=ended_by_budget)
    report = train(ask("train", repeats=3, budget="1h"), launcher, watcher)
    run = load_run("run")
    assert [(result.status, result.stopped_by) for result in run.results] == [
        ("ok", None),
        ("ok", None),
        ("interrupted", "budget"),
    ]
    assert run.record.end is not None
    assert (run.record.end.why, run.record.end.missing) == ("budget", 1)
    assert report.exit_code == 0  # as before: a budget is not a failure
    assert not any(section.title == "Failed" for section in report.sections)
    assert any("1 of 3 launches to go" in note for note in watcher.notes)
    again = FakeLauncher(MODEL)
    train(ask("train", repeats=3, budget="1h", resume=True), again, RecordingWatcher())
    assert [launch for _, launch in again.launched] == [2]
    assert {result.status for result in load_run("run").results} == {"ok"}


def test_a_budget_too_short_for_any_launch_names_one_that_would_suffice() -> None:
    launcher = FakeLauncher(
        MODEL, outcomes=lambda *_: Outcome(status="interrupted", reason="spent", stopped_by="budget")
    )
    with pytest.raises(CannotRun, match="before any launch was finished") as caught:
        train(ask("train", repeats=3, budget="2s"), launcher, RecordingWatcher())
    assert len(launcher.launched) == 1
    assert f"scalescope resume {Path('run').absolute()} --budget " in str(caught.value)
    suggested = str(caught.value).partition(" --budget ")[2].partition("s ")[0]
    assert float(suggested) >= 4.0  # more than what was too short
    end = load_run("run").record.end
    assert end is not None and end.why == "budget" and end.missing == 3
    assert end.next_launch_s and f"about {end.next_launch_s:.0f} s" in str(caught.value)


def test_resume_without_a_folder_takes_the_newest_unfinished_run_of_the_verb() -> None:
    def lost(trial: Trial, launch: int) -> Outcome:
        return Outcome(status="failed", reason="lost")

    older = train(
        ask("train", output_dir="runs/a", repeats=2), FakeLauncher(MODEL, outcomes=lost), RecordingWatcher()
    )
    train(ask("train", output_dir="runs/b", repeats=2), FakeLauncher(MODEL), RecordingWatcher())
    scale(
        ask("scale", output_dir="runs/c", world_size=[1, 2]),
        FakeLauncher(MODEL, outcomes=lost),
        RecordingWatcher(),
    )
    launcher = FakeLauncher(MODEL)
    again = train(ask("train", output_dir=None, repeats=2, resume=True), launcher, RecordingWatcher())
    assert older.path is not None and again.path is not None
    assert again.path.resolve() == older.path.resolve()
    assert [launch for _, launch in launcher.launched] == [0, 1]
    with pytest.raises(BadInput, match="no unfinished run of train"):
        train(ask("train", output_dir=None, resume=True), FakeLauncher(MODEL), RecordingWatcher())


def test_a_line_that_was_cut_off_is_measured_again() -> None:
    train(ask("train", repeats=3), FakeLauncher(MODEL), RecordingWatcher())
    path = Path("run/trials.jsonl")
    path.write_bytes(path.read_bytes()[:-50])
    launcher, watcher = FakeLauncher(MODEL), RecordingWatcher()
    report = train(ask("train", repeats=3, resume=True), launcher, watcher)
    assert [launch for _, launch in launcher.launched] == [2]
    assert report.exit_code == 0
    assert any("trials.jsonl:3: left out" in note for note in watcher.notes)
    assert sorted(result.launch for result in load_run("run").results) == [0, 1, 2]


@pytest.mark.parametrize(
    ("study", "asked"),
    [
        (train, {"world_size": [1, 2], "batch_size": [10, 20, 30]}),
        (
            scale,
            {"world_size": [1, 2, 4], "global_batch_size": [40, 80], "bucket_cap_mb": "none"},
        ),
        (
            standard_run,
            {"world_size": [1, 2], "precision": "bf16", "lr": "1e-3", "bucket_cap_mb": [1, 25]},
        ),
        (train, {"env.OMP_NUM_THREADS": [1, 2], "name": "null", "budget": "2h"}),
    ],
)
@pytest.mark.usefixtures("without_page")
def test_the_experiment_file_repeats_the_run(study: Callable[..., Report], asked: dict[str, Any]) -> None:
    verb = "run" if study is standard_run else "scale" if study is scale else "train"
    first, second = FakeLauncher(MODEL), FakeLauncher(MODEL)
    original = study(ask(verb, output_dir="a", repeats=2, **asked), first, RecordingWatcher())
    repeated = study(ask(verb, output_dir="b", file=Path("a/experiment.yaml")), second, RecordingWatcher())
    assert first.launched == second.launched
    assert Path("a/experiment.yaml").read_text() == Path("b/experiment.yaml").read_text()
    ids = [
        {result.trial_id for result in load_run(str(report.path)).results} for report in (original, repeated)
    ]
    assert ids[0] == ids[1]


def test_stored_secrets_are_not_shown_when_they_are_redacted_now() -> None:
    asked = {"command": "python t.py --token hunter22", "output_dir": "a"}
    train(ask("train", **asked, redact_env=False), FakeLauncher(MODEL), RecordingWatcher())
    with pytest.raises(BadInput) as caught:
        train(ask("train", **asked, repeats=2, resume=True), FakeLauncher(MODEL), RecordingWatcher())
    assert str(caught.value) == (
        "--resume: a was started with different settings: "
        "command (to continue with values that are stored, add --no-redact-env)"
    )


class RecordingCode(FakeLauncher):
    """Ranks that record the file of their workload or the files of their script, as real ones do."""

    def launch(self, trial: Trial, *args: Any, **kwargs: Any) -> Outcome:
        outcome = super().launch(trial, *args, **kwargs)
        path = Path("mine.py").resolve()
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        for record in outcome.records:
            if trial.is_command:
                record.tables["script_files"] = [{"path": str(path), "sha256": sha256}]
            else:
                record.counters.update(workload_file=str(path), workload_sha256=sha256)
        return outcome


_OWN_CODE = {
    "function": {"workload": "mine.py:build", "batch_size": 4},
    "command": {"command": "python mine.py"},
}


@pytest.mark.parametrize("kind", _OWN_CODE)
@pytest.mark.fault(55)
def test_a_run_whose_workload_changed_does_not_go_on(kind: str) -> None:
    code = "def build():\n    pass\n"
    Path("mine.py").write_text(code)
    asked = {**_OWN_CODE[kind], "output_dir": "a"}
    train(ask("train", **asked), RecordingCode(MODEL), RecordingWatcher())
    os.utime("mine.py")  # only what it holds counts
    watcher = RecordingWatcher()
    train(ask("train", **asked, repeats=4, resume=True), RecordingCode(MODEL), watcher)
    assert not [note for note in watcher.notes if "has changed since" in note]
    Path("mine.py").write_text(f"{code}# later\n")
    launcher = RecordingCode(MODEL)
    with pytest.raises(BadInput) as caught:
        train(ask("train", **asked, repeats=5, resume=True), launcher, RecordingWatcher())
    shown = "mine.py" if kind == "function" else Path("mine.py").resolve()
    assert str(caught.value) == (
        f"--resume: {shown} has changed since this run began; start a new run, or restore it"
    )
    assert launcher.launched == []
    Path("mine.py").write_text(code)
    train(ask("train", **asked, repeats=5, resume=True), launcher, RecordingWatcher())
    assert launcher.launched


@pytest.mark.parametrize("kind", _OWN_CODE)
@pytest.mark.fault(55)
def test_a_launch_of_changed_code_is_not_pooled_with_those_before(kind: str) -> None:
    class Editing(RecordingCode):
        def launch(self, trial: Trial, *args: Any, **kwargs: Any) -> Outcome:
            outcome = super().launch(trial, *args, **kwargs)
            Path("mine.py").write_text(f"# edited after launch {len(self.launched)}\n")
            return outcome

    Path("mine.py").write_text("def build():\n    pass\n")
    asked = ask("train", **_OWN_CODE[kind], repeats=3)
    report = train(asked, Editing(MODEL), RecordingWatcher(), breakdown=False)
    assert report.run is not None
    first, second = report.run.results
    assert (first.status, second.status) == ("ok", "invalid")
    assert second.reason == (
        f"{Path('mine.py').resolve()} changed while this run was measured; start a new run"
    )


def test_a_model_that_changed_since_the_run_began_is_mentioned_when_it_goes_on() -> None:
    Path("mine.py").write_text("def build():\n    pass\n")
    os.utime("mine.py", (0, 0))
    asked = {"workload": "mine.py:build", "batch_size": 4}
    train(ask("train", **asked), FakeLauncher(MODEL), RecordingWatcher())
    unchanged, changed = RecordingWatcher(), RecordingWatcher()
    train(ask("train", **asked, repeats=2, resume=True), FakeLauncher(MODEL), unchanged)
    os.utime("mine.py")
    train(ask("train", **asked, repeats=3, resume=True), FakeLauncher(MODEL), changed)
    assert not [note for note in unchanged.notes if "has changed since" in note]
    assert [note for note in changed.notes if note.startswith("mine.py has changed since")]
