"""`tune` from request to recommendation, on a cost model that says which settings truly help."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.analysis.tuning.ledger import CONFIRM
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.results.run import load_run
from scalescope.studies import campaign
from scalescope.studies.study import Report
from scalescope.studies.tuning.tune import levers_from
from tests.verbs import train, tune

from .recording import RecordingWatcher, ask, summary_of

BF16, JIT, FUSED = ("precision", "bf16"), ("jit", True), ("fused_optimizer", True)
HOOK = ("comm_hook", "fp16")
Factors = dict[tuple[tuple[str, object], ...], float]
Outcomes = Callable[[Trial, int], Outcome | None]
HELPING: Factors = {(BF16,): 0.7, (JIT,): 0.8, (HOOK,): 0.9, (BF16, HOOK): 1.3, (FUSED,): 1.5}
LEVERS = ("precision", "jit", "comm_hook", "fused_optimizer")


def launcher(factors: Factors, outcomes: Outcomes = lambda trial, launch: None) -> FakeLauncher:
    return FakeLauncher(CostModel(launch_noise=0.004, factors=factors), outcomes=outcomes)


def tuned(
    factors: Factors,
    *levers: str,
    watcher: RecordingWatcher | None = None,
    outcomes: Outcomes = lambda trial, launch: None,
    combine: bool = False,
    **asked: Any,
) -> Report:
    options = {"levers": levers or LEVERS, "combine": combine}
    request = ask("tune", world_size=2, **asked)
    return tune(request, launcher(factors, outcomes), watcher or RecordingWatcher(), **options)


def tuning_of(report: Report) -> dict[str, Any]:
    assert report.path is not None
    tuning: dict[str, Any] = json.loads((report.path / "tuning.json").read_text())
    return tuning


def verdicts(report: Report) -> dict[str, str | None]:
    return {lever["lever"]: lever["verdict"] for lever in tuning_of(report)["tried"]}


def sentence(report: Report) -> str:
    return report.sections[0].lines[0]


def test_it_finds_the_true_best() -> None:
    report = tuned(HELPING)
    assert report.exit_code == 0
    assert verdicts(report) == {
        "precision bf16": "faster",
        "jit True": "faster",
        "comm_hook fp16": "faster",
        "comm_hook bf16": "no difference",
        "fused_optimizer True": "slower",
    }
    tuning = tuning_of(report)
    assert tuning["winner"] == ["precision bf16"]
    assert tuning["recommended"] is True
    low, high = tuning["confirmed"]["ci95_speedup"]
    assert low < 1 / 0.7 < high
    assert sentence(report).startswith("precision bf16 is faster: 1.4")
    assert sentence(report).endswith("the current speed.")
    assert report.next_step is not None
    assert report.next_step.argv == ("scalescope", "train", str(Path("run/tuned.yaml").resolve()))


def test_repeats_are_spent_where_they_decide_something() -> None:
    tuned(HELPING)
    run = load_run("run")
    counts = {
        (result.settings["fused_optimizer"], result.settings["precision"]): sum(
            other.trial_id == result.trial_id for other in run.results
        )
        for result in run.results
    }
    assert counts[True, "fp32"] == 2  # clearly worse
    assert counts[False, "bf16"] == 5 + 5  # judged, then confirmed anew


def test_what_helps_together_is_combined_and_what_interferes_is_left_out() -> None:
    report = tuned(HELPING, combine=True)
    tuning = tuning_of(report)
    assert tuning["winner"] == ["jit True", "precision bf16"]
    attempts = {(attempt["lever"], attempt["adds"]): attempt["kept"] for attempt in tuning["combined"]}
    assert attempts == {
        ("jit True", True): True,
        ("comm_hook fp16", True): False,
        ("fused_optimizer True", True): False,
        ("precision bf16", False): True,  # jit was added last: it needs no second look
    }
    low, high = tuning["confirmed"]["ci95_speedup"]
    assert low < 1 / (0.7 * 0.8) < high
    together = next(
        section for section in report.sections if (section.title or "").startswith("Combinations")
    )
    assert together.table is not None and len(together.table.rows) == 1 + len(attempts)


def test_nothing_is_recommended_where_nothing_helps() -> None:
    report = tuned({(FUSED,): 1.5}, combine=True)
    assert sentence(report) == "No lever was found to be faster."
    assert report.next_step is None
    assert report.exit_code == 0
    assert tuning_of(report)["winner"] == []
    assert tuning_of(report)["confirmed"] is None
    assert not Path("run/tuned.yaml").exists()
    assert len(load_run("run").results) == 5 * 5 + 2


def test_a_noisy_candidate_does_not_hide_one_that_is_known_to_help() -> None:
    """The largest estimate may be noise; the winner is the best of what is sure."""

    def shaky(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["jit"] and launch % 2:
            return FakeLauncher(CostModel(factors={(JIT,): 0.3})).launch(
                trial,
                launch,
                None,
                None,
                RecordingWatcher(),  # type: ignore[arg-type]
            )
        return None

    report = tuned({(BF16,): 0.9}, outcomes=shaky)
    assert verdicts(report)["jit True"] == "inconclusive"
    tried = {lever["lever"]: lever["speedup"] for lever in tuning_of(report)["tried"]}
    assert tried["jit True"] > tried["precision bf16"]
    assert tuning_of(report)["winner"] == ["precision bf16"]


def test_another_job_is_shown_and_never_recommended() -> None:
    report = tuned({(("accumulation_steps", 4),): 0.5}, "accumulation_steps")
    (first, _) = [lever for lever in tuning_of(report)["tried"] if lever["verdict"] == "faster"]
    assert first["changes"] == "the job"
    assert sentence(report).startswith("Faster, but another job than before")
    assert "accumulation_steps 4 2." in sentence(report)
    table = report.sections[1].table
    assert table is not None
    assert all(row[-1].endswith("changes the job: compared per sample") for row in table.rows)


def test_other_jobs_are_compared_by_how_they_scale() -> None:
    """Exposed communication of 20 ms beside 5.6 ms of work on one rank: two ranks are slower than one."""
    model = CostModel(fixed_s=0.005, per_sample_s=0.0002, exposed_comm_s={2: 0.020}, launch_noise=0.002)
    watcher = RecordingWatcher()
    options = {"levers": ("batch_size",)}
    request = ask("tune", world_size=2, batch_size=3)
    report = tune(request, FakeLauncher(model), watcher, **options)
    scaling = {name: estimate["speedup"] for name, estimate in tuning_of(report)["scaling"].items()}

    def true(batch: int) -> float:
        alone_s = 0.005 + 0.0002 * batch
        return 2 * alone_s / (alone_s + 0.020)

    expected = {"now": true(3), "batch_size 6": true(6), "batch_size 24": true(24), "batch_size 96": true(96)}
    expected["batch_size 384"] = true(384)
    assert scaling == pytest.approx(expected, rel=0.02)
    now, best = report.sections[0].lines[1:]
    assert now.startswith("2 ranks now deliver 0.44×") and now.endswith("(slower than one rank).")
    assert best.startswith("Of the changed jobs, batch_size 384 scales best: 1.61×")
    assert best.endswith("it does not make this job faster.")


class Clock:
    """A clock that moves only when a launch runs."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def launch(self, trial: Trial, launch: int) -> Outcome | None:
        self.now_s += 10.0
        return None


@pytest.mark.parametrize("budget_s", [180, 275, 400, 800])
def test_a_combination_is_found_confirmed_and_told_within_its_budget(
    budget_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=clock.monotonic))
    report = tuned(HELPING, combine=True, outcomes=clock.launch, budget=f"{budget_s}s")
    tuning = tuning_of(report)
    assert tuning["finished"] is True
    assert tuning["recommended"] is True
    assert "precision bf16" in tuning["winner"]
    assert 10 * len(load_run("run").results) <= budget_s
    watcher = RecordingWatcher()
    rest = tuned(HELPING, combine=True, outcomes=clock.launch, budget="1h", resume=True, watcher=watcher)
    assert tuning_of(rest)["winner"] == ["jit True", "precision bf16"]
    assert all(attempt["launches"] for attempt in tuning_of(rest)["combined"])


def test_what_is_fastest_so_far_is_told_when_it_changes() -> None:
    watcher = RecordingWatcher()
    tuned(HELPING, combine=True, watcher=watcher)
    names = dict.fromkeys(interim.text.rpartition(" ")[0] for interim in watcher.verdicts)
    assert list(names)[-2:] == [
        "the fastest is precision bf16 with",
        "the fastest is jit True + precision bf16 with",
    ]
    assert watcher.verdicts[-1].text.endswith("×")


@pytest.mark.parametrize("budget_s", [45])
def test_a_search_that_its_budget_ended_is_resumed_to_the_same_answer(
    budget_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=clock.monotonic))
    whole = tuned(HELPING, combine=True, outcomes=clock.launch, budget="1h", output_dir="whole")
    watcher = RecordingWatcher()
    part = tuned(
        HELPING,
        combine=True,
        outcomes=clock.launch,
        budget=f"{budget_s}s",
        output_dir="part",
        watcher=watcher,
    )
    assert len(load_run("part").results) == budget_s // 10
    assert tuning_of(part)["finished"] is False
    assert sentence(part).endswith("The search ended early; continue with --resume.")
    assert part.next_step is None or "tuned.yaml" not in part.next_step.command
    assert not Path("part/tuned.yaml").exists()
    assert part.exit_code == 0
    assert any("ended the run" in note for note in watcher.notes)
    rest = tuned(HELPING, combine=True, outcomes=clock.launch, budget="1h", output_dir="part", resume=True)
    assert tuning_of(rest) == tuning_of(whole)
    assert sentence(rest) == sentence(whole)
    keys = [sorted(result.key for result in load_run(name).results) for name in ("whole", "part")]
    assert keys[0] == keys[1]
    assert Path("part/tuned.yaml").read_text() == Path("whole/tuned.yaml").read_text()


def test_a_finished_search_is_resumed_without_a_launch() -> None:
    first = tuned(HELPING, combine=True)
    watcher = RecordingWatcher()
    again = tuned(HELPING, combine=True, resume=True, watcher=watcher)
    assert watcher.launched == []
    assert tuning_of(again) == tuning_of(first)


def spoilt(loss: float, *pairs: tuple[str, object]) -> Outcomes:
    """Ranks whose loss is another one where these settings are on."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if not all(trial.settings[name] == value for name, value in pairs):
            return None
        made = FakeLauncher(CostModel(launch_noise=0.004, factors=HELPING)).launch(
            trial,
            launch,
            None,
            None,
            RecordingWatcher(),  # type: ignore[arg-type]
        )
        for record in made.records:
            record.samples["loss"] = [loss] * len(record.samples["loss"])
        return made

    return outcome


def test_a_combination_that_spoils_the_loss_is_left_out() -> None:
    report = tuned(HELPING, combine=True, outcomes=spoilt(5.0, BF16, JIT))
    assert tuning_of(report)["winner"] == ["precision bf16"]
    together = next(
        section for section in report.sections if (section.title or "").startswith("Combinations")
    )
    assert together.table is not None
    assert [row[-1] for row in together.table.rows if row[0] == "with jit True"] == [
        "left out: the loss differs"
    ]


def test_one_failure_of_the_baseline_by_chance_is_none() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        plain = trial.settings["precision"] == "fp32" and launch == 0
        return Outcome(status="failed", reason="by chance") if plain else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert tuning_of(report)["recommended"] is True


@pytest.mark.parametrize("lost", [1, 3, 6])  # the last while the winner is confirmed
def test_a_baseline_that_runs_out_of_memory_ends_the_search_with_the_reason(lost: int) -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        plain = trial.settings["precision"] == "fp32" and launch == lost
        return Outcome(status="oom", reason="too large") if plain else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert "early" not in sentence(report)
    assert tuning_of(report)["finished"] is True
    assert tuning_of(report)["recommended"] is False
    assert report.exit_code == 4


def test_a_winner_is_confirmed_beside_a_baseline_launched_in_turn_with_it() -> None:
    """The first winner fails when it is confirmed; the second must not inherit the baseline's launches."""

    def fail(trial: Trial, launch: int) -> Outcome | None:
        late = trial.settings["precision"] == "bf16" and launch == 8
        return Outcome(status="failed", reason="lost") if late else None

    report = tuned(HELPING, "precision", "jit", outcomes=fail)
    tuning = tuning_of(report)
    assert tuning["winner"] == ["jit True"]
    confirming = [result for result in load_run("run").results if result.stage == CONFIRM]
    plain = {result.round for result in confirming if result.trial_id == tuning["baseline"]}
    winner = {result.round for result in confirming if result.settings["jit"]}
    assert winner == set(range(5, 10))
    assert plain == set(range(10))


@pytest.mark.parametrize("status", ["failed", "hang", "oom", "invalid"])
def test_a_candidate_that_fails_is_a_row_and_the_run_goes_on(status: Any) -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status=status, reason="it broke") if trial.settings["jit"] else None

    report = tuned(HELPING, outcomes=fail, combine=True)
    assert report.exit_code == 0
    table = report.sections[1].table
    assert table is not None
    (row,) = [row for row in table.rows if row[0] == "jit True"]
    assert row[1] == "failed"
    assert row[-1] == f"{status}: it broke"
    (tried,) = [lever for lever in tuning_of(report)["tried"] if lever["lever"] == "jit True"]
    assert tried["failed"] == f"{status}: it broke"
    assert tried["verdict"] is None
    assert tuning_of(report)["winner"] == ["precision bf16"]
    assert tuning_of(report)["finished"] is True
    assert report.sections[-1].title == "Failed"


def test_a_baseline_that_fails_is_no_answer() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        plain = trial.settings["precision"] == "fp32" and not trial.settings["jit"]
        return Outcome(status="failed", reason="it broke") if plain else None

    report = tuned(HELPING, "precision", "jit", outcomes=fail)
    assert report.exit_code == 4
    assert sentence(report) == "The baseline could not be measured: failed: it broke"
    assert report.next_step is None


def test_the_tuned_file_is_the_winner() -> None:
    report = tuned(HELPING, combine=True, bucket_cap_mb=5, name="mine")
    assert report.path is not None
    path = report.path / "tuned.yaml"
    assert path.read_text().startswith("# scalescope train FILE repeats this run.\n")
    experiment = build_experiment("train", "train", read_experiment_file(path), {}, {})
    (trial,) = expand(experiment, TWO_CORES).trials
    confirming = {r.trial_id for r in load_run(report.path).results if r.stage == CONFIRM}
    assert confirming == {tuning_of(report)["baseline"], trial.trial_id}
    wanted = {"precision": "bf16", "jit": True, "comm_hook": "none", "bucket_cap_mb": 5.0, "world_size": 2}
    assert wanted.items() <= trial.settings.items()
    again = train(ask("train", file=path, output_dir="again"), launcher(HELPING), RecordingWatcher())
    (row,) = summary_of(again.path)["results"]["training"]
    assert again.exit_code == 0
    assert row["step_time_s"]["mean"] == pytest.approx((0.01 + 256 * 0.0002) * 0.7 * 0.8, rel=0.01)


def test_the_file_of_results_is_complete() -> None:
    tuning = tuning_of(tuned(HELPING, "precision", "jit", "memory_format"))
    assert set(tuning) == {
        *("verdict", "baseline", "finished", "threshold", "tried", "inapplicable", "combined", "winner"),
        *("recommended", "confirmed", "scaling"),
    }
    assert tuning["finished"] is True
    assert tuning["threshold"] == 0.03
    assert {lever["lever"] for lever in tuning["inapplicable"]} == {
        *("precision tf32", "precision fp16", "memory_format")
    }
    assert all(lever["reason"] for lever in tuning["inapplicable"])
    ids = {result.trial_id for result in load_run("run").results}
    assert ids == {tuning["baseline"], *(lever["trial_id"] for lever in tuning["tried"])}
    for lever in tuning["tried"]:
        assert lever["launches"] == 5
        assert lever["failed"] is None
        assert lever["ci95_speedup"][0] < lever["speedup"] < lever["ci95_speedup"][1]
        assert 0.0 <= lever["p_value"] <= 1.0
        assert lever["loss_change"] == 0.0
        assert lever["smallest_effect_seen"] < 0.03


def test_a_dry_run_shows_the_trials_and_launches_nothing() -> None:
    made = launcher(HELPING)
    watcher = RecordingWatcher()
    request = ask("tune", world_size=2, dry_run=True)
    report = tune(request, made, watcher, levers=("precision", "comm_hook"))
    assert made.launched == []
    assert list(Path().iterdir()) == []
    section, left_out = report.sections
    assert section.table is not None
    assert section.table.rows == (
        ("precision bf16", "rounding"),
        ("comm_hook fp16", "rounding"),
        ("comm_hook bf16", "rounding"),
    )
    assert section.lines[0].startswith("Up to 5 launches each, about")
    assert left_out.title == "Not tried"
    assert any(line.startswith("precision tf32: ") for line in left_out.lines)


def test_what_leaves_nothing_to_try_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing is left to try here"):
        tuned({}, "memory_format")
    with pytest.raises(BadInput, match="at most 100 launches"):
        tuned({}, repeats=101)
    with pytest.raises(BadInput, match="name some, or all"):
        levers_from([" , "])
    assert levers_from(["a, b=1", "c"]) == ("a", "b=1", "c")


def test_what_is_slow_alone_may_still_help_others() -> None:
    """As channels_last does, which wants matrix units that fp32 does not use."""

    def shaky(trial: Trial, launch: int) -> Outcome | None:
        slow = trial.settings["jit"] and trial.settings["precision"] == "fp32"
        model = CostModel(factors={(JIT,): 1.5 if launch % 2 else 3.0})
        made = FakeLauncher(model).launch(trial, launch, None, None, RecordingWatcher())  # type: ignore[arg-type]
        return made if slow else None

    report = tuned({(BF16,): 0.7, (JIT,): 0.9}, "precision", "jit", outcomes=shaky, combine=True)
    (tried,) = [lever for lever in tuning_of(report)["tried"] if lever["lever"] == "jit True"]
    assert (tried["dropped"], tried["launches"], tried["verdict"]) == (True, 2, "inconclusive")
    assert tuning_of(report)["winner"] == ["jit True", "precision bf16"]
    first, *_ = tuning_of(report)["combined"]
    assert (first["lever"], first["kept"]) == ("jit True", True)
