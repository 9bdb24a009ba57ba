"""Training commands through the whole pipeline: asked, launched, observed, explained, reported, resumed."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_facts import step_facts_of
from scalescope.errors import BadInput
from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.observed import without_observations
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import TUNED
from scalescope.studies.report import page_of
from scalescope.studies.stored import explain, present
from scalescope.studies.trace import Profiling
from tests.builders.requests import with_gpus
from tests.builders.studies import scale, standard_run, train, tune
from tests.simulated.costs import SimulatedScript
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

COMMAND = "torchrun --nproc-per-node={world_size} train.py"
COST: dict[str, Any] = {
    "fixed_s": 0.010,
    "per_sample_s": 0.0002,
    "exposed_comm_s": {2: 0.004},
    "input_s": {1: 0.001, 2: 0.002},
}
LOADING = CostModel(**COST, script=SimulatedScript(loader=True))
PLAIN = CostModel(**COST)


def labels(run: Run) -> dict[str, int]:
    """How often each trial was launched, without the collectives."""
    return dict(Counter(result.trial.label for result in run.results if result.trial.is_command))


def run_of(report: Any) -> Run:
    assert report.path is not None
    return load_run(report.path)


def test_scale_explains_a_command_by_what_its_first_round_showed() -> None:
    watcher = RecordingWatcher()
    report = scale(ask("scale", command=COMMAND, repeats=2), FakeLauncher(LOADING), watcher)
    assert report.exit_code == 0
    assert labels(run_of(report)) == dict.fromkeys(
        (
            "script, 1 rank, batch 32",
            "script, 2 ranks, batch 32",
            "script, 1 rank, batch 32, preloaded input",
            "script, 2 ranks, batch 32, preloaded input",
            "script, 2 ranks, batch 32, no communication, preloaded input",
            "arrivals, script, 2 ranks, batch 32, preloaded input",
        ),
        2,
    )
    # Nothing is known before the first round, and what was asked for is launched first in every round.
    commands = [(trial, number) for trial, number in watcher.launched if trial.is_command]
    assert [trial.is_ablation for trial, _ in commands[:2]] == [False, False]
    later = [trial.is_ablation for trial, number in commands if number == 1]
    assert later == sorted(later)
    assert all(trial == without_observations(trial) for trial, _ in commands)


def test_the_rows_of_a_command_are_exact_and_random_skew_is_separated_by_recorded_ranks() -> None:
    report = scale(ask("scale", command=COMMAND, repeats=2), FakeLauncher(PLAIN), RecordingWatcher())
    one, two = summary_of(report.path)["results"]["scaling"]
    step_s = PLAIN.fixed_s + 32 * PLAIN.per_sample_s
    assert (one["batch_size"], two["batch_size"], two["mode"]) == (32, 32, "weak")
    assert two["speedup"] == pytest.approx(2.0 * step_s / (step_s + 0.004))
    assert two["exposed_comm_s"] == pytest.approx(0.004)
    late = FakeLauncher(CostModel(**COST, late_s={1: 0.003}))
    report = scale(ask("scale", command=COMMAND, repeats=2, output_dir="late"), late, RecordingWatcher())
    waterfall = summary_of(report.path)["results"]["scaling"][-1]["waterfall"]
    terms = {term["name"]: term for term in waterfall["terms"]}
    assert list(terms) == ["contention", "stragglers", "random skew", "communication"]
    assert terms["communication"]["time_s"] == pytest.approx(0.004)
    assert not terms["communication"]["includes"]


def test_a_script_that_shares_its_samples_scales_strongly_and_no_share_of_it_is_recorded() -> None:
    script = SimulatedScript(samples=64, shares_samples=True, wrapper="fsdp1")
    watcher = RecordingWatcher()
    launcher = FakeLauncher(CostModel(**COST, script=script))
    report = scale(ask("scale", command=COMMAND, repeats=1), launcher, watcher)
    modes = {result.trial.mode for result in run_of(report).results if result.trial.is_command}
    assert modes == {"strong"}
    assert not any(result.trial.settings["global_batch_size"] for result in run_of(report).results[:2])
    assert recorded(watcher) == {"arrivals, script, 2 ranks": 1}


@pytest.mark.parametrize("wrapper", ["fsdp1", "none"])
def test_communication_stays_where_it_cannot_be_taken_away(wrapper: str) -> None:
    model = CostModel(**COST, script=SimulatedScript(wrapper=wrapper))
    report = scale(ask("scale", command=COMMAND, repeats=2), FakeLauncher(model), RecordingWatcher())
    assert report.exit_code == 0
    # Recorded ranks are held against a recorded one instead.
    jobs = ("script, 1 rank, batch 32", "script, 2 ranks, batch 32")
    assert labels(run_of(report)) == dict.fromkeys((*jobs, *(f"arrivals, {job}" for job in jobs)), 2)
    waterfall = summary_of(report.path)["results"]["scaling"][-1]["waterfall"]
    assert waterfall["method"] == "trace"
    terms = {term["name"]: term["time_s"] for term in waterfall["terms"]}
    assert terms["communication"] == pytest.approx(0.004)


def test_a_global_batch_is_also_measured_as_one_ranks_share() -> None:
    request = ask("scale", command=f"{COMMAND} -b {{global_batch_size}}", global_batch_size=64, repeats=1)
    report = scale(request, FakeLauncher(PLAIN), RecordingWatcher())
    alone = {result.trial.samples_per_step for result in run_of(report).results if result.trial.is_command}
    assert alone == {64, 32}


def test_without_a_placeholder_there_is_one_world_size_and_a_note() -> None:
    watcher = RecordingWatcher()
    scale(ask("scale", command="python train.py", repeats=1), FakeLauncher(PLAIN), watcher)
    assert any("--nproc-per-node={world_size}" in note for note in watcher.notes)
    assert {trial.world_size for trial, _ in watcher.launched if trial.is_command} == {1}


def test_train_adds_preloaded_input_where_a_loader_was_observed() -> None:
    request = ask("train", command=COMMAND, world_size=2, repeats=2)
    report = train(request, FakeLauncher(LOADING), RecordingWatcher())
    assert labels(run_of(report)) == {
        "script, 2 ranks, batch 32": 2,
        "script, 2 ranks, batch 32, preloaded input": 2,
    }


def test_train_otherwise_measures_the_command_alone_even_if_samples_are_unknown() -> None:
    report = train(ask("train", command=COMMAND, world_size=2), FakeLauncher(PLAIN), RecordingWatcher())
    assert labels(run_of(report)) == {"script, 2 ranks, batch 32": 1}
    uncounted = FakeLauncher(CostModel(**COST, script=SimulatedScript(counts_samples=False)))
    request = ask("train", command="python train.py", output_dir="uncounted")
    report = train(request, uncounted, RecordingWatcher())
    assert report.exit_code == 0
    assert labels(run_of(report)) == {"script, 1 rank": 1}


def recorded(watcher: RecordingWatcher) -> dict[str, int]:
    """How often what was recorded."""
    launched = (trial for trial, _ in watcher.launched if trial.is_command and not trial.is_training)
    return dict(Counter(trial.label for trial in launched))


def test_on_a_gpu_train_records_a_command_once_and_shows_its_parts() -> None:
    watcher = RecordingWatcher()
    request = ask("train", command="python train.py", repeats=2)
    report = train(request, FakeLauncher(LOADING, with_gpus(1)), watcher)
    assert report.exit_code == 0
    assert recorded(watcher) == {"breakdown, script, 1 rank": 1}
    assert all(trial == without_observations(trial) for trial, _ in watcher.launched)
    (facts,) = step_facts_of(run_of(report))
    assert facts.recording is not None and facts.waterfall is not None
    assert facts.waterfall.time_s("backward") > facts.waterfall.time_s("forward") > 0.0


def test_on_gpus_scale_records_one_rank_of_a_command_and_who_waits() -> None:
    watcher = RecordingWatcher()
    request = ask("scale", command=COMMAND, repeats=2, world_size=[1, 2])
    scale(request, FakeLauncher(PLAIN, with_gpus(2)), watcher)
    assert recorded(watcher) == {"breakdown, script, 1 rank": 1, "arrivals, script, 2 ranks": 2}


@pytest.mark.parametrize(
    ("function", "verb", "options", "more"),
    [
        (train, "train", {"breakdown": False}, {}),
        (train, "train", {}, {"keep_running": "true"}),
        (scale, "scale", {"waterfall": False}, {}),
        (scale, "scale", {}, {"keep_running": "true"}),
    ],
)
def test_nothing_is_recorded_where_it_is_not_wanted(
    function: Any, verb: str, options: dict[str, bool], more: dict[str, str]
) -> None:
    watcher = RecordingWatcher()
    request = ask(verb, command=COMMAND, world_size=2, repeats=3, **more)
    function(request, FakeLauncher(LOADING, with_gpus(2)), watcher, **options)
    assert recorded(watcher) == {}
    launches = [(trial.is_command, trial.is_ablation, number) for trial, number in watcher.launched]
    assert launches == [(True, False, number) for number in range(1 if more else 3)]


def test_ranks_that_could_not_do_without_communication_are_held_against_a_recorded_one() -> None:
    def refused(trial: Trial, launch: int) -> Outcome | None:
        reason = "this torch cannot take the collectives out of FSDP2"
        silent = has_ablation(trial, NO_COMM)
        return Outcome(status="failed", reason=reason, bad_input=True) if silent else None

    model = CostModel(**COST, script=SimulatedScript(wrapper="fsdp2"))
    watcher = RecordingWatcher()
    launcher = FakeLauncher(model, outcomes=refused)
    report = scale(ask("scale", command=COMMAND, repeats=1), launcher, watcher)
    assert recorded(watcher) == {"arrivals, script, 2 ranks": 1, "arrivals, script, 1 rank": 1}
    assert summary_of(report.path)["results"]["scaling"][-1]["waterfall"]["method"] == "trace"


def test_run_measures_a_command_without_its_memory(without_page: None) -> None:
    watcher = RecordingWatcher()
    report = standard_run(ask("run", command=COMMAND, repeats=1), FakeLauncher(LOADING), watcher)
    assert report.exit_code == 0
    assert any(note.startswith("Memory is not measured") for note in watcher.notes)
    assert Counter(result.trial.benchmark for result in run_of(report).results) == {
        "train": 5,
        "arrivals": 1,
        "comm": 1,
    }


def test_tune_finds_what_helps_a_command_and_repeats_it(tmp_path: Path) -> None:
    helping = {(("comm_hook", "fp16"),): 0.7}
    model = CostModel(**COST, factors=helping, launch_noise=0.002)
    request = ask("tune", command=COMMAND, world_size=2, budget="none")
    report = tune(request, FakeLauncher(model), RecordingWatcher())
    assert report.exit_code == 0 and report.path is not None
    written = (report.path / TUNED).read_text(encoding="utf-8")
    assert f"command: {COMMAND}" in written.splitlines()
    assert "comm_hook: fp16" in written.splitlines()
    again = train(
        ask("train", file=report.path / TUNED, output_dir="again"), FakeLauncher(model), RecordingWatcher()
    )
    assert run_of(again).results[0].trial.comm_hook == "fp16"


def test_tune_leaves_out_what_the_script_does_not_have() -> None:
    model = CostModel(**COST, script=SimulatedScript(wrapper="fsdp2"))
    watcher = RecordingWatcher()
    tune(ask("tune", command=COMMAND, world_size=2, budget="none", repeats=1), FakeLauncher(model), watcher)
    tried = [trial for trial, _ in watcher.launched]
    assert tried and all(trial.bucket_cap_mb is None and trial.num_workers is None for trial in tried)


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_command_is_resumed_where_it_was_stopped(stop_after: int) -> None:
    request = ask("scale", command=COMMAND, repeats=2)
    whole = scale(
        ask("scale", command=COMMAND, repeats=2, output_dir="whole"),
        FakeLauncher(LOADING),
        RecordingWatcher(),
    )

    launches = []

    def stopped(trial: Any, launch: int) -> Outcome | None:
        launches.append(trial)
        if len(launches) > stop_after:
            raise RuntimeError("stopped")
        return None

    with pytest.raises(RuntimeError):
        scale(request, FakeLauncher(LOADING, outcomes=stopped), RecordingWatcher())
    resumed = ask("scale", command=COMMAND, repeats=2, resume=True)
    report = scale(resumed, FakeLauncher(LOADING), RecordingWatcher())
    assert labels(run_of(report)) == labels(run_of(whole))


def test_more_repeats_can_be_added_by_resuming_and_the_run_is_explained_and_drawn() -> None:
    scale(ask("scale", command=COMMAND, repeats=1), FakeLauncher(LOADING), RecordingWatcher())
    request = ask("scale", command=COMMAND, repeats=2, resume=True)
    report = scale(request, FakeLauncher(LOADING), RecordingWatcher())
    run = run_of(report)
    assert set(labels(run).values()) == {2}
    assert present(run).headline == report.headline
    assert explain(run.path)
    assert "torchrun" in page_of(run)


def test_commands_that_share_a_run_make_the_launches_of_their_numbers() -> None:
    for number in (0, 1):
        request = dataclasses.replace(ask("scale", command=COMMAND, repeats=2), only_launches=(number,))
        scale(request, FakeLauncher(LOADING), RecordingWatcher())
        launched = Counter(result.launch for result in load_run("run").results if result.trial.is_command)
        assert launched == dict.fromkeys(range(number + 1), 6)


def test_a_dry_run_launches_nothing_and_knows_no_batch() -> None:
    for verb, function in (("scale", scale), ("train", train), ("tune", tune), ("run", standard_run)):
        launcher = FakeLauncher(LOADING)
        request = ask(verb, command=COMMAND, world_size=2, dry_run=True)
        report = function(request, launcher, RecordingWatcher())
        assert report.sections and not launcher.launched


@pytest.mark.parametrize(
    ("function", "verb", "more", "message"),
    [
        (tune, "tune", {}, "--keep-running cannot be used with tune"),
        (scale, "scale", {"world_size": [1, 2]}, "--keep-running takes one --world-size"),
    ],
)
def test_a_command_that_keeps_running_compares_nothing(
    function: Any, verb: str, more: dict[str, Any], message: str
) -> None:
    request = ask(verb, command=COMMAND, keep_running="true", **more)
    with pytest.raises(BadInput, match=message):
        function(request, FakeLauncher(LOADING), RecordingWatcher())


def test_losses_and_traces_of_a_command_are_refused() -> None:
    with pytest.raises(BadInput, match="--verify-loss cannot be used with a command"):
        tune(ask("tune", command=COMMAND), FakeLauncher(PLAIN), RecordingWatcher(), verify_loss=100)
    with pytest.raises(BadInput, match="--profile cannot be used with a command"):
        train(ask("train", command=COMMAND), FakeLauncher(PLAIN), RecordingWatcher(), profiling=Profiling())
    with pytest.raises(BadInput, match="--iters cannot be used with a command"):
        standard_run(ask("run", command=COMMAND), FakeLauncher(PLAIN), RecordingWatcher(), iters=9)
    with pytest.raises(BadInput, match="--benchmark memory cannot be used with a command"):
        standard_run(ask("run", command=COMMAND), FakeLauncher(PLAIN), RecordingWatcher(), parts=("memory",))
