"""`tune` from request to recommendation: known effects, failures, losses, its budget, and resuming.

Which launch comes next and what launches prove is tested in tests/unit/analysis/tuning; how a search is read
and shown in tests/unit/studies/tuning and tests/unit/report/tuning.
"""

from pathlib import Path
from typing import Any

import pytest

from scalescope.cli import app
from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.results.run import load_run
from scalescope.results.run_record import newest_unfinished_run
from scalescope.studies import running
from scalescope.studies.runs import resuming
from scalescope.studies.study import Report
from scalescope.studies.tuning.tune import TuneStudy, levers_from, window_for
from tests.builders.studies import train, tune
from tests.builders.timed_launches import LAUNCH_S, TimedLauncher, campaign_clock
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of
from .tuning import (
    BF16,
    FUSED,
    HELPING,
    HOOK,
    JIT,
    has,
    is_baseline,
    lever_of,
    measured,
    model_of,
    results_of,
    sentence,
    stages,
    statuses,
    table,
    tuned,
    tuning_of,
    with_loss,
)

TOGETHER = ("jit True", "precision bf16")
Found = tuple[Report, RecordingWatcher]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A finished search, which is only read."""
    watcher = RecordingWatcher()
    path = tmp_path_factory.mktemp("found") / "run"
    return tuned(HELPING, watcher=watcher, output_dir=str(path)), watcher


def test_it_finds_the_true_best_and_leaves_out_what_interferes(found: Found) -> None:
    report, _ = found
    assert report.exit_code == 0
    tuning = tuning_of(report)
    assert (tuning["winner"], tuning["recommended"], tuning["finished"]) == (list(TOGETHER), True, True)
    low, high = tuning["confirmed"]["ci95_speedup"]
    assert low < 1 / (0.7 * 0.8) < high
    found_of = statuses(report)
    assert found_of.pop("comm_hook bf16") in ("no gain", "undecided")  # it does nothing: the noise decides
    assert found_of == {
        "precision bf16": "recommended",
        "jit True": "recommended",
        "fused_optimizer True": "slower",
        "comm_hook fp16": "slower",  # with bf16; it helps alone
    }
    assert report.headline == tuning["verdict"] == sentence(report)
    assert sentence(report).startswith("jit True + precision bf16 is faster: 1.")
    assert {lever_of(report, name)["support"] for name in TOGETHER} == {"confirmed"}
    assert measured(report)[TOGETHER]["confirmed"] is True


def test_the_baseline_comes_first_and_levers_are_added_to_the_best_so_far(found: Found) -> None:
    report, watcher = found
    assert report.path is not None
    assert is_baseline(watcher.launched[0][0])
    assert watcher.labels[0] == "measuring current settings"
    kinds = stages(report.path)
    assert kinds[:3] == ["baseline", "facts", "explore"]
    assert kinds == sorted(kinds, key=["baseline", "facts", "explore", "refine", "confirm"].index)
    assert lever_of(report, "precision bf16")["added_to"] == []
    assert lever_of(report, "jit True")["added_to"] == ["precision bf16"]
    assert "precision bf16" in lever_of(report, "comm_hook fp16")["added_to"]


def test_every_launch_is_in_the_table_and_the_truth_in_its_intervals(found: Found) -> None:
    report, _ = found
    assert report.path is not None
    results, tuning = results_of(report.path), tuning_of(report)
    assert sum(int(row["launches"]) for row in table(report, "Measured")) == len(results)
    ids = [row["trial_id"] for row in tuning["combinations"]]
    assert len(ids) == len(set(ids))
    assert {*ids, tuning["without_communication"]["trial_id"]} == {result.trial_id for result in results}
    effects = {"precision bf16": BF16, "jit True": JIT, "fused_optimizer True": FUSED, "comm_hook fp16": HOOK}
    missed = 0
    for levers, row in measured(report).items():
        if not levers:
            continue
        on = {effects[name] for name in levers if name in effects}
        truth = 1.0
        for settings, factor in HELPING.items():
            truth *= factor if on >= set(settings) else 1.0
        low, high = row["ci95_speedup"]
        missed += not low < 1 / truth < high
        assert (row["loss_change"], row["loss_differs"], row["failure"]) == (0.0, False, None)
    assert missed <= 1  # each misses one time in twenty


def test_what_is_fastest_so_far_is_shown_after_every_launch(found: Found) -> None:
    _, watcher = found
    texts = list(dict.fromkeys(interim.text.rpartition(" ")[0] for interim in watcher.verdicts))
    assert texts[:3] == [
        "nothing is faster",
        "the fastest is precision bf16 with",
        "the fastest is jit True + precision bf16 with",
    ]
    assert set(texts[3:]) <= {"the fastest is comm_hook bf16 + jit True + precision bf16 with"}  # by noise
    best = watcher.verdicts[-1].best
    assert best is not None and best.speedup == pytest.approx(1 / (0.7 * 0.8), rel=0.02)
    assert len(watcher.verdicts) == len(watcher.launched)


def test_the_tuned_file_is_the_winner(found: Found) -> None:
    report, _ = found
    assert report.path is not None and report.next_step is not None
    path = report.path / "tuned.yaml"
    assert report.next_step.argv == ("scalescope", "train", str(path.resolve()))
    experiment = build_experiment("train", "train", read_experiment_file(path), {}, {})
    (trial,) = expand(experiment, TWO_CORES).trials
    assert trial.trial_id == measured(report)[TOGETHER]["trial_id"]
    wanted = {"precision": "bf16", "jit": True, "comm_hook": "none", "world_size": 2}
    assert wanted.items() <= trial.settings.items()
    again = train(ask("train", file=path), FakeLauncher(model_of(HELPING)), RecordingWatcher())
    (row,) = summary_of(again.path)["results"]["training"]
    assert row["step_time_s"]["mean"] == pytest.approx((0.01 + 256 * 0.0002) * 0.7 * 0.8, rel=0.01)


def test_nothing_is_recommended_where_nothing_helps() -> None:
    report = tuned({(FUSED,): 1.5})
    assert sentence(report).startswith("Nothing that was tried beats the current settings by more than ")
    assert (report.next_step, report.exit_code) == (None, 0)
    tuning = tuning_of(report)
    assert (tuning["recommended"], tuning["confirmed"], tuning["finished"]) == (False, None, True)
    assert 0.0 <= tuning["at_most"] < 0.15
    assert all(row["verdict"] != "faster" for row in tuning["combinations"])
    assert not Path("run/tuned.yaml").exists()


def test_each_lever_alone_is_compared_with_the_current_settings() -> None:
    report = tuned(HELPING, combine=False)
    assert sorted(map(len, measured(report))) == [0, 1, 1, 1, 1, 1]
    assert tuning_of(report)["winner"] == ["precision bf16"]


def test_levers_of_which_nothing_is_expected_are_not_launched_unless_named() -> None:
    """Nobody waits for input here, so what feeds the model faster cannot help."""
    asked = {"world_size": 1, "num_workers": 2}
    every = tuned({}, "all", **asked)
    assert lever_of(every, "prefetch_factor 4")["status"] == "unpromising"
    assert all("prefetch_factor 4" not in levers for levers in measured(every))
    named = tuned({}, "prefetch_factor", output_dir="named", **asked)
    assert ("prefetch_factor 4",) in measured(named)


def test_disturbed_launches_do_not_count_where_there_are_others() -> None:
    """The first launch of bf16 is slow because of others; it is repeated, and the repeat counts."""
    busy = OtherLoad(cores=2, other_cores=1.1, rank_waits=(0.55,))
    launches: list[str] = []

    def load(trial: Trial, attempt: int) -> OtherLoad:
        launches.append(trial.trial_id)
        first = has(trial, BF16) and launches.count(trial.trial_id) == 1
        return busy if first else OtherLoad()

    launcher = FakeLauncher(model_of({(BF16,): 0.7}), loads=load)
    report = tuned({}, "precision", launcher=launcher)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert tuning_of(report)["confirmed"]["speedup"] == pytest.approx(1 / 0.7, rel=0.02)


# Other jobs


def test_another_job_is_reported_apart_and_never_recommended() -> None:
    report = tuned({(("accumulation_steps", 4),): 0.5, (BF16,): 0.7}, "accumulation_steps", "precision")
    tuning = tuning_of(report)
    assert tuning["winner"] == ["precision bf16"]
    assert all("accumulation" not in name for levers in measured(report) for name in levers)
    jobs = {job["job"]: job["speedup"] for job in tuning["other_jobs"]}
    assert jobs["now"] == 1.0
    assert jobs["accumulation_steps 4"] > 1.9


def test_other_jobs_are_compared_by_how_they_scale_and_may_fail() -> None:
    """Exposed communication of 20 ms beside 5.6 ms of work on one rank: two ranks are slower than one."""
    model = CostModel(fixed_s=0.005, per_sample_s=0.0002, exposed_comm_s={2: 0.020}, launch_noise=0.002)

    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="oom", reason="too large") if trial.settings["batch_size"] == 96 else None

    report = tuned({}, "batch_size", launcher=FakeLauncher(model, outcomes=fail), batch_size=3)
    assert report.exit_code == 0
    scaling = {job["job"]: job["scaling"] for job in tuning_of(report)["other_jobs"]}

    def true(batch: int) -> float:
        alone_s = 0.005 + 0.0002 * batch
        return 2 * alone_s / (alone_s + 0.020)

    expected = {f"batch_size {batch}": true(batch) for batch in (6, 24, 384)}
    assert scaling == pytest.approx({"now": true(3), **expected}, rel=0.02)
    assert sum(result.status == "oom" for result in results_of()) == 1
    assert is_baseline(results_of()[0].trial)


# Failures


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_lever_that_fails_is_a_row_and_the_search_goes_on(status: Any) -> None:
    watcher = RecordingWatcher()

    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="it broke") if has(trial, JIT) else None

    report = tuned(HELPING, "precision", "jit", outcomes=fail, watcher=watcher)
    assert report.exit_code == 0
    (row,) = [row for row in table(report, "Levers") if row["lever"] == "jit True"]
    assert row["result"] == f"{status}: it broke"
    assert sum(has(trial, JIT) for trial, _ in watcher.launched) == 1  # never launched again
    tuning = tuning_of(report)
    assert (tuning["winner"], tuning["recommended"], tuning["finished"]) == (["precision bf16"], True, True)


@pytest.mark.parametrize(("status", "tries"), [("failed", 2), ("oom", 1)])
def test_a_baseline_that_fails_is_an_error(status: Any, tries: int) -> None:
    watcher = RecordingWatcher()

    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="it broke") if is_baseline(trial) else None

    report = tuned(HELPING, outcomes=fail, watcher=watcher)
    assert (report.exit_code, report.next_step) == (4, None)
    assert sentence(report) == f"The current settings could not be measured: {status}"
    assert [is_baseline(trial) for trial, _ in watcher.launched] == [True] * tries


@pytest.mark.parametrize(("launch", "status"), [(0, "failed"), (1, "oom")])
def test_one_failure_of_the_baseline_does_not_lose_what_was_measured(launch: int, status: Any) -> None:
    def fail(trial: Trial, number: int) -> Outcome | None:
        return Outcome(status=status, reason="once") if is_baseline(trial) and number == launch else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert report.exit_code == 4
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert measured(report)["precision bf16",]["speedup"] == pytest.approx(1 / 0.7, rel=0.03)


def test_a_lever_whose_loss_differs_is_never_recommended() -> None:
    report = tuned(HELPING, "precision", "jit", outcomes=with_loss(5.0, BF16))
    assert tuning_of(report)["winner"] == ["jit True"]
    assert lever_of(report, "precision bf16")["status"] == "loss differs"
    (row,) = [row for row in table(report, "Measured") if row["settings"] == "precision bf16"]
    assert row["remark"] == "the loss differs"
    assert sum(result.settings["precision"] == "bf16" for result in results_of()) == 1


# The budget


def timed(monkeypatch: pytest.MonkeyPatch, launch_s: Any = lambda trial: LAUNCH_S) -> TimedLauncher:
    launcher: TimedLauncher = campaign_clock(monkeypatch, TimedLauncher(HELPING, launch_s))
    return launcher


@pytest.mark.parametrize(
    ("budget_s", "winner"), [(30, []), (45, ["precision bf16"]), (120, ["jit True", "precision bf16"])]
)
def test_every_budget_ends_with_an_answer_and_is_kept(
    budget_s: int, winner: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = timed(monkeypatch)
    report = tuned(HELPING, launcher=launcher, budget=f"{budget_s}s")
    tuning = tuning_of(report)
    assert report.exit_code == 0
    assert launcher.now_s <= 1000.0 + budget_s
    assert is_baseline(results_of()[0].trial)
    assert tuning["recommended"] or budget_s == 30
    if tuning["recommended"]:
        assert set(winner) <= set(tuning["winner"])
        assert measured(report)[tuple(tuning["winner"])]["ci95_speedup"][0] > 1.0
    limits = [deadline for deadline in launcher.deadlines if deadline is not None]
    assert len(limits) == len(launcher.deadlines)
    assert max(limits) <= 1000.0 + budget_s
    if budget_s == 120:  # time for confirming is kept back
        explored = [limit for limit, kind in zip(limits, stages(), strict=True) if kind == "explore"]
        assert min(explored) < 1000.0 + budget_s - LAUNCH_S


def test_a_search_that_its_budget_ended_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch)
    part = tuned(HELPING, launcher=launcher, budget="75s")
    before = results_of()
    assert tuning_of(part)["finished"] is False
    end = load_run("run").record.end
    assert end is not None and end.why == "budget"  # the next launch did not fit, and was not begun
    assert newest_unfinished_run("tune", Path()) is not None
    rest = tuned(HELPING, launcher=launcher, budget="1h", resume=True)
    assert results_of()[: len(before)] == before
    assert (tuning_of(rest)["finished"], tuning_of(rest)["winner"]) == (True, list(TOGETHER))
    assert stages().count("baseline") == 1
    explored = [r.trial_id for r in results_of() if r.stage is not None and r.stage.kind == "explore"]
    assert len(explored) == len(set(explored))
    end = load_run("run").record.end
    assert end is not None and end.why == "finished"
    assert newest_unfinished_run("tune", Path()) is None
    watcher = RecordingWatcher()
    again = tuned(HELPING, resume=True, watcher=watcher)
    assert watcher.launched == []
    assert tuning_of(again) == tuning_of(rest)


@pytest.mark.parametrize("killed_at", [0, 6])
def test_an_interrupted_search_is_resumed_to_the_same_winner(killed_at: int) -> None:
    made: list[int] = []

    def interrupt(trial: Trial, launch: int) -> Outcome | None:
        made.append(launch)
        if len(made) == killed_at + 1:
            raise Interrupted(2)
        return None

    with pytest.raises(Interrupted):
        tuned(HELPING, outcomes=interrupt)
    assert [result.status for result in results_of()] == ["ok"] * killed_at + ["interrupted"]
    rest = tuning_of(tuned(HELPING, resume=True))
    assert (rest["winner"], rest["recommended"], rest["finished"]) == (list(TOGETHER), True, True)
    assert {result.status for result in results_of()} == {"ok"}
    keys = [result.key for result in results_of()]
    assert len(keys) == len(set(keys))


def test_a_lever_that_takes_too_long_is_ended_and_tried_again_with_a_larger_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As compiling may: the time for confirming is kept, and the lever is not tried in vain again."""
    launcher = timed(monkeypatch, lambda trial: 200.0 if has(trial, JIT) else LAUNCH_S)
    report = tuned(HELPING, "precision", "jit", launcher=launcher, budget="180s")
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert launcher.now_s <= 1180.0
    jit = lever_of(report, "jit True")
    assert (jit["status"], jit["speedup"]) == ("undecided", None)
    assert jit["reason"].startswith("ended after ")
    assert [result.stopped_by for result in results_of()].count("budget") == 1
    assert tuning_of(report)["finished"] is False
    report = tuned(HELPING, "precision", "jit", launcher=launcher, budget="1h", resume=True)
    assert tuning_of(report)["winner"] == list(TOGETHER)


def test_a_budget_below_one_launch_is_an_error_that_says_what_would_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = timed(monkeypatch, lambda trial: 100.0)
    with pytest.raises(CannotRun, match=r"before any launch was finished.*--budget"):
        tuned(HELPING, launcher=launcher, budget="30s")
    report = tuned(HELPING, launcher=launcher, budget="20m", resume=True)
    assert tuning_of(report)["recommended"]


def test_without_a_budget_the_search_ends_by_itself() -> None:
    launcher = TimedLauncher(HELPING)
    report = tuned(HELPING, launcher=launcher, budget="none")
    assert set(launcher.deadlines) == {None}
    assert tuning_of(report)["finished"] is True
    assert Path("run/tuned.yaml").exists()


def test_the_printed_command_goes_on_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = timed(monkeypatch, lambda trial: 20.0)
    report = tuned(HELPING, launcher=launcher, budget="30s")
    assert sentence(report) == (
        "Only the current settings could be measured; use a larger --budget to try levers."
    )
    assert report.next_step is not None
    assert report.next_step.argv[:2] == ("scalescope", "resume")
    monkeypatch.setattr(running, "LocalLauncher", lambda: launcher)
    monkeypatch.setattr(resuming, "_refuse_other_machine", lambda path: None)  # the machine is made up
    with pytest.raises(SystemExit) as leaving:
        app.main(list(report.next_step.argv[1:]))
    assert not leaving.value.code
    assert len(results_of()) > 5
    assert "jit True + precision bf16" in Path("run/tuning.json").read_text()


@pytest.mark.parametrize(
    ("budget_s", "window_s"), [(None, 3.0), (30.0, 0.3), (180.0, 1.0), (360.0, 2.0), (3600.0, 3.0)]
)
def test_a_small_budget_measures_shorter_windows(budget_s: float | None, window_s: float) -> None:
    assert window_for(budget_s) == pytest.approx(window_s)


# The request


def test_a_dry_run_shows_the_levers_and_launches_nothing() -> None:
    launcher = FakeLauncher(CostModel())
    request = ask("tune", world_size=2, dry_run=True)
    report = tune(request, launcher, RecordingWatcher(), levers=("precision", "comm_hook"))
    assert launcher.launched == []
    assert list(Path().iterdir()) == []
    section, left_out = report.sections
    assert section.table is not None
    assert section.table.rows == (
        ("precision bf16", "rounding"),
        ("comm_hook fp16", "rounding"),
        ("comm_hook bf16", "rounding"),
    )
    assert section.lines[0].startswith("The current settings first, then launches on top of the best so far")
    assert left_out.title == "Not tried"
    assert any(line.startswith("precision tf32: ") for line in left_out.lines)


def test_what_leaves_nothing_to_try_is_refused() -> None:
    with pytest.raises(BadInput, match="no lever can be tried here"):
        tuned({}, "memory_format")
    with pytest.raises(BadInput, match="expected names of levers, or all"):
        levers_from([" , "])
    assert levers_from(["a, b=1", "c"]) == ("a", "b=1", "c")


def test_flags_are_read_back() -> None:
    for combine in (True, False):
        study = TuneStudy(levers=("precision", "jit=true"), threshold=0.05, combine=combine, verify_loss=300)
        again = TuneStudy.from_flags(study.flags())
        assert (again.levers, again.combine, again.verify_loss) == (study.levers, combine, 300)
        assert again.threshold == pytest.approx(0.05)
    assert TuneStudy.from_flags(TuneStudy().flags()).verify_loss is None
