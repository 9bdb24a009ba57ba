"""`tune` from request to recommendation, on a cost model that says which settings truly help."""

import math
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.studies.tuning.tune import TuneStudy, levers_from, window_for
from tests.builders.studies import train, tune

from .recording import RecordingWatcher, ask, summary_of
from .tuning import (
    BF16,
    FUSED,
    HELPING,
    HOOK,
    JIT,
    Factors,
    has,
    is_baseline,
    lever_of,
    measured,
    results_of,
    sentence,
    simulated,
    stages,
    statuses,
    table,
    tuned,
    tuning_of,
)

TOGETHER = ("jit True", "precision bf16")


def test_it_finds_the_true_best_and_leaves_out_what_interferes() -> None:
    report = tuned(HELPING)
    assert report.exit_code == 0
    tuning = tuning_of(report)
    assert (tuning["winner"], tuning["recommended"], tuning["finished"]) == (list(TOGETHER), True, True)
    low, high = tuning["confirmed"]["ci95_speedup"]
    assert low < 1 / (0.7 * 0.8) < high
    assert statuses(report) == {
        "precision bf16": "recommended",
        "jit True": "recommended",
        "fused_optimizer True": "slower",
        "comm_hook fp16": "slower",  # with bf16; it helps alone
        "comm_hook bf16": "no gain",
    }
    assert sentence(report).startswith("jit True + precision bf16 is faster: 1.7")
    assert report.headline == tuning["verdict"] == sentence(report)
    assert report.next_step is not None
    assert report.next_step.argv == ("scalescope", "train", str(Path("run/tuned.yaml").resolve()))


def test_the_baseline_comes_first_and_levers_are_added_to_the_best_so_far() -> None:
    watcher = RecordingWatcher()
    report = tuned(HELPING, watcher=watcher)
    assert is_baseline(watcher.launched[0][0])
    assert watcher.labels[0] == "measuring current settings"
    kinds = stages()
    assert kinds[:3] == ["baseline", "facts", "explore"]
    assert kinds == sorted(kinds, key=["baseline", "facts", "explore", "refine", "confirm"].index)
    assert lever_of(report, "precision bf16")["added_to"] == []
    assert lever_of(report, "jit True")["added_to"] == ["precision bf16"]
    assert lever_of(report, "comm_hook fp16")["added_to"] == list(TOGETHER)


def test_the_winner_is_confirmed_anew_against_the_baseline_and_without_each_lever() -> None:
    report = tuned(HELPING)
    confirming = [result for result in results_of() if result.stage and result.stage.kind == "confirm"]
    rows = {row["trial_id"]: tuple(row["levers"]) for row in tuning_of(report)["combinations"]}
    assert {rows[result.trial_id] for result in confirming} == {(), TOGETHER, TOGETHER[:1], TOGETHER[1:]}
    assert {lever_of(report, name)["support"] for name in TOGETHER} == {"confirmed"}
    assert measured(report)[TOGETHER]["confirmed"] is True


def test_every_launch_is_in_the_table() -> None:
    report = tuned(HELPING)
    rows = table(report, "Measured")
    counted = sum(int(row["launches"]) for row in rows)
    assert counted == len(results_of())
    assert {row["settings"] for row in rows} >= {
        "current settings",
        "current settings, without communication",
        "jit True + precision bf16",
    }
    tuning = tuning_of(report)
    ids = [row["trial_id"] for row in tuning["combinations"]]
    assert len(ids) == len(set(ids))
    assert {*ids, tuning["without_communication"]["trial_id"]} == {r.trial_id for r in results_of()}


def test_the_truth_is_within_the_intervals_of_the_table() -> None:
    """Nearly all of them: each misses one time in twenty."""
    report = tuned(HELPING)
    missed = 0
    for levers, row in measured(report).items():
        truth = 1.0
        for setting, name in ((BF16, "precision bf16"), (JIT, "jit True"), (FUSED, "fused_optimizer True")):
            truth *= HELPING[(setting,)] if name in levers else 1.0
        if "comm_hook fp16" in levers:
            truth *= HELPING[(HOOK,)] * (HELPING[(BF16, HOOK)] if "precision bf16" in levers else 1.0)
        if levers:
            low, high = row["ci95_speedup"]
            missed += not low < 1 / truth < high
    assert missed <= 1


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_recommended_where_nothing_helps(seed: int) -> None:
    report = tuned({(FUSED,): 1.5}, seed=seed)
    assert sentence(report).startswith("Nothing that was tried beats the current settings by more than ")
    assert report.next_step is None
    assert report.exit_code == 0
    tuning = tuning_of(report)
    assert (tuning["recommended"], tuning["confirmed"], tuning["finished"]) == (False, None, True)
    assert 0.0 <= tuning["at_most"] < 0.15
    assert not Path("run/tuned.yaml").exists()
    assert "recommended" not in statuses(report).values()


def test_the_sentence_does_not_contradict_the_table() -> None:
    report = tuned({}, repeats=2)
    tuning = tuning_of(report)
    assert not tuning["recommended"]
    assert all(row["verdict"] != "faster" for row in tuning["combinations"])
    highs = [row["ci95_speedup"][1] for row in tuning["combinations"] if row["ci95_speedup"]]
    assert highs and max(highs) <= 1.0 + tuning["at_most"] + 1e-9


def test_a_lever_that_gives_nothing_any_more_is_dropped() -> None:
    """jit helps fp32 by a fifth; with bf16 it does nothing, and a lucky launch hides that."""
    lucky: Factors = {(BF16,): 0.7, (JIT,): 0.94}

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        late = has(trial, JIT, BF16) and launch > 0
        return simulated({(BF16,): 0.7}, trial, launch) if late else None

    report = tuned(lucky, "precision", "jit", outcomes=outcome)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert tuning_of(report)["recommended"] is True
    assert statuses(report) == {"precision bf16": "recommended", "jit True": "dropped"}
    (row,) = [row for row in table(report, "Levers") if row["lever"] == "jit True"]
    assert row["result"] == "dropped: no gain in the end"


def test_what_is_slow_alone_may_still_help_others() -> None:
    """As channels_last does, which wants matrix units that fp32 does not use."""

    def shaky(trial: Trial, launch: int) -> Outcome | None:
        slow = has(trial, JIT, ("precision", "fp32"))
        return simulated({(JIT,): 1.5}, trial, launch) if slow else None

    report = tuned({(BF16,): 0.7, (JIT,): 0.9}, "precision", "jit", outcomes=shaky)
    assert tuning_of(report)["winner"] == list(TOGETHER)


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_not_taken_for_a_gain(seed: int) -> None:
    launcher = FakeLauncher(CostModel(launch_noise=0.06, factors={(BF16,): 0.5}))
    report = tuned({}, launcher=launcher, seed=seed)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    rows = measured(report)
    assert rows["precision bf16",]["launches"] > 2  # noise takes more launches
    assert tuning_of(report)["confirmed"]["speedup"] == pytest.approx(2.0, rel=0.2)


def test_each_lever_alone_is_compared_with_the_current_settings() -> None:
    report = tuned(HELPING, combine=False)
    assert all(len(levers) < 2 for levers in measured(report))
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert {tuple(lever["added_to"]) for lever in tuning_of(report)["levers"]} == {()}
    assert len(measured(report)) == 1 + 5


def test_levers_of_which_nothing_is_expected_are_not_launched_unless_named() -> None:
    """Nobody waits for input here, so what feeds the model faster cannot help."""
    asked = {"world_size": 1, "num_workers": 2}
    every = tuned({}, "all", **asked)
    assert lever_of(every, "prefetch_factor 4")["status"] == "unpromising"
    assert all("prefetch_factor 4" not in levers for levers in measured(every))
    assert any("prefetch_factor 4" in line and "too little" in line for line in every.sections[-1].lines)
    named = tuned({}, "prefetch_factor", output_dir="named", **asked)
    assert ("prefetch_factor 4",) in measured(named)


def test_another_job_is_reported_apart_and_never_recommended() -> None:
    report = tuned({(("accumulation_steps", 4),): 0.5, (BF16,): 0.7}, "accumulation_steps", "precision")
    tuning = tuning_of(report)
    assert tuning["winner"] == ["precision bf16"]
    assert all("accumulation" not in name for levers in measured(report) for name in levers)
    jobs = {job["job"]: job["speedup"] for job in tuning["other_jobs"]}
    assert jobs["now"] == 1.0
    assert jobs["accumulation_steps 4"] > 1.9
    assert {row["job"] for row in table(report, "Other jobs")} == set(jobs)


def test_other_jobs_are_compared_by_how_they_scale() -> None:
    """Exposed communication of 20 ms beside 5.6 ms of work on one rank: two ranks are slower than one."""
    model = CostModel(fixed_s=0.005, per_sample_s=0.0002, exposed_comm_s={2: 0.020}, launch_noise=0.002)
    report = tuned({}, "batch_size", launcher=FakeLauncher(model), batch_size=3)
    scaling = {job["job"]: job["scaling"] for job in tuning_of(report)["other_jobs"]}

    def true(batch: int) -> float:
        alone_s = 0.005 + 0.0002 * batch
        return 2 * alone_s / (alone_s + 0.020)

    expected = {f"batch_size {batch}": true(batch) for batch in (6, 24, 96, 384)}
    assert scaling == pytest.approx({"now": true(3), **expected}, rel=0.02)
    assert sentence(report) == (
        "No lever that trains the same job was asked for; other jobs are listed apart."
    )
    (section,) = [section for section in report.sections if (section.title or "").startswith("Other jobs")]
    now, best = section.lines
    assert now.startswith("2 ranks now deliver 0.44×") and now.endswith("(slower than one rank).")
    assert best.startswith("Of the changed jobs, batch_size 384 scales best: 1.61×")
    assert is_baseline(results_of()[0].trial)


def test_what_is_fastest_so_far_is_shown_after_every_launch() -> None:
    watcher = RecordingWatcher()
    tuned(HELPING, watcher=watcher)
    texts = list(dict.fromkeys(interim.text.rpartition(" ")[0] for interim in watcher.verdicts))
    assert texts == [
        "nothing is faster",
        "the fastest is precision bf16 with",
        "the fastest is jit True + precision bf16 with",
    ]
    best = watcher.verdicts[-1].best
    assert best is not None and best.speedup == pytest.approx(1 / (0.7 * 0.8), rel=0.02)
    assert len(watcher.verdicts) == len(watcher.launched) == len(watcher.labels)


def test_the_tuned_file_is_the_winner() -> None:
    report = tuned(HELPING, bucket_cap_mb=5, name="mine")
    assert report.path is not None
    path = report.path / "tuned.yaml"
    assert path.read_text().startswith("# scalescope train FILE repeats this run.\n")
    experiment = build_experiment("train", "train", read_experiment_file(path), {}, {})
    (trial,) = expand(experiment, TWO_CORES).trials
    assert trial.trial_id == measured(report)[TOGETHER]["trial_id"]
    wanted = {"precision": "bf16", "jit": True, "comm_hook": "none", "bucket_cap_mb": 5.0, "world_size": 2}
    assert wanted.items() <= trial.settings.items()
    launcher = FakeLauncher(CostModel(launch_noise=0.004, factors=HELPING))
    again = train(ask("train", file=path, output_dir="again"), launcher, RecordingWatcher())
    (row,) = summary_of(again.path)["results"]["training"]
    assert again.exit_code == 0
    assert row["step_time_s"]["mean"] == pytest.approx((0.01 + 256 * 0.0002) * 0.7 * 0.8, rel=0.01)


def test_the_file_of_results_is_complete() -> None:
    tuning = tuning_of(tuned(HELPING, "precision", "jit", "memory_format"))
    assert set(tuning) == {
        *("verdict", "baseline", "finished", "combinations", "without_communication", "levers"),
        *(
            "inapplicable",
            "other_jobs",
            "winner",
            "recommended",
            "code",
            "script",
            "at_most",
            "confirmed",
            "loss_check",
        ),
    }
    assert {lever["lever"] for lever in tuning["inapplicable"]} == {
        *("precision tf32", "precision fp16", "memory_format")
    }
    assert all(lever["reason"] for lever in tuning["inapplicable"])
    for row in tuning["combinations"]:
        if row["levers"]:
            assert row["ci95_speedup"][0] < row["speedup"] < row["ci95_speedup"][1]
            assert row["loss_change"] == 0.0
        assert (row["loss_differs"], row["failure"]) == (False, None)
        assert row["step_time_s"] > 0.0


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
    with pytest.raises(BadInput, match="nothing is left to try here"):
        tuned({}, "memory_format")
    with pytest.raises(BadInput, match="name some, or all"):
        levers_from([" , "])
    assert levers_from(["a, b=1", "c"]) == ("a", "b=1", "c")


def test_disturbed_launches_do_not_count_where_there_are_others() -> None:
    """The first launch of bf16 is slow because of others; it is repeated, and the repeat counts."""
    busy = OtherLoad(cores=2, other_cores=1.1, rank_waits=(0.55,))
    launches: list[str] = []

    def load(trial: Trial, attempt: int) -> OtherLoad:
        launches.append(trial.trial_id)
        first = has(trial, BF16) and launches.count(trial.trial_id) == 1
        return busy if first else OtherLoad()

    launcher = FakeLauncher(CostModel(launch_noise=0.004, factors={(BF16,): 0.7}), loads=load)
    report = tuned({}, "precision", launcher=launcher)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    speedup = tuning_of(report)["confirmed"]["speedup"]
    assert speedup == pytest.approx(1 / 0.7, rel=0.02)


@pytest.mark.parametrize(
    ("budget_s", "window_s"), [(None, 3.0), (30.0, 0.3), (180.0, 1.0), (360.0, 2.0), (3600.0, 3.0)]
)
def test_a_small_budget_measures_shorter_windows(budget_s: float | None, window_s: float) -> None:
    assert window_for(budget_s) == pytest.approx(window_s)


@pytest.mark.parametrize("combine", [True, False])
def test_flags_are_read_back(combine: bool) -> None:
    study = TuneStudy(levers=("precision", "jit=true"), threshold=0.05, combine=combine)
    again = TuneStudy.from_flags(study.flags())
    assert (again.levers, again.combine) == (study.levers, combine)
    assert math.isclose(again.threshold, 0.05)


def test_flags_of_the_first_version_combined_only_where_asked() -> None:
    flags: tuple[Any, ...] = ("--levers", "precision", "--threshold", "3%")
    assert TuneStudy.from_flags(flags).combine is False
    assert TuneStudy.from_flags((*flags, "--combine")).combine is True
