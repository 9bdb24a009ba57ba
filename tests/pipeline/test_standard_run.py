"""`run`: the standard benchmark."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.given import Given
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.studies.report import page_of
from scalescope.studies.request import Request
from scalescope.studies.scaling.run import RunStudy
from tests.builders.studies import plan_of, standard_run
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

pytestmark = pytest.mark.usefixtures("without_page")
MODEL = CostModel(fixed_s=0.010, per_sample_s=0.0002, exposed_comm_s={2: 0.004, 4: 0.012})


def test_the_standard_run_shows_the_machine_and_measures_scaling_memory_and_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scalescope.studies.report.page_of", page_of)
    watcher = RecordingWatcher()
    report = standard_run(ask("run", batch_size=50), FakeLauncher(MODEL), watcher)
    assert report.exit_code == 0
    (machine,) = watcher.sections
    assert machine.title == "Machine"
    assert machine.lines[0].startswith("Host       : fake processor, 2 cores, 16.0 GiB")
    assert "2 ranks deliver" in report.sections[0].lines[0]
    results = summary_of(report.path)["results"]
    assert [row["world_size"] for row in results["scaling"]] == [1, 2]
    two = results["scaling"][1]
    assert (two["efficiency"], two["exposed_comm_s"]) == pytest.approx((0.020 / 0.024, 0.004))
    assert two["reading"] == "good"

    by_benchmark: dict[str, list[tuple[Trial, int]]] = {}
    for trial, number in watcher.launched:
        by_benchmark.setdefault(trial.benchmark, []).append((trial, number))
    assert sorted(trial.rank_batch_size for trial, _ in by_benchmark["memory"]) == [2, 8]
    assert {(trial.world_size, n) for trial, n in by_benchmark["memory"]} == {(1, 0)}  # once each
    assert "Each sample takes 977 KiB" in report.sections[-1].lines[0]
    assert "calculated; scalescope memory tries it with --memory-limit" in report.sections[-1].lines[0]

    exchanges = {(trial.world_size, trial.settings["collective"]) for trial, _ in by_benchmark["comm"]}
    assert exchanges == {(2, "all_reduce")}
    assert report.sections[-2].lines[0].startswith("all_reduce over 2 ranks takes 21.0 µs")
    sizes = [1 << power for power in range(10, 27, 2)]
    times = {row["size_bytes"]: row["time_s"] for row in results["communication"]["all_reduce"]}
    assert times == pytest.approx({size: 20e-6 + size / 1e9 for size in sizes})

    assert watcher.verdicts[0].text.endswith("(1 launch each).")  # before what only explains
    assert watcher.verdicts[-1].text.endswith("(5 launches each).")
    first = [(trial.world_size, trial.settings["strategy"]) for trial, _ in watcher.launched[:2]]
    assert sorted(first) == [(1, "single"), (2, "ddp")]
    assert report.page is not None and report.path is not None
    assert report.page.resolve() == (report.path / "report.html").resolve()
    assert "2 ranks deliver" in report.page.read_text()


def test_memory_of_user_models_is_measured_with_the_requested_batches() -> None:
    workload = f"{Path(__file__).parents[2] / 'examples/own_model.py'}:build"
    watcher = RecordingWatcher()
    request = ask("run", workload=workload, batch_size=[16, 48], world_size=[1, 2], repeats=1)
    standard_run(request, FakeLauncher(MODEL), watcher)
    memory_trials = [trial for trial, _ in watcher.launched if trial.settings["benchmark"] == "memory"]
    assert sorted(trial.rank_batch_size for trial in memory_trials) == [16, 48]


@pytest.mark.parametrize("bad_input", [False, True])
def test_a_failed_memory_measurement_is_a_remark_not_a_failure(bad_input: bool) -> None:
    def refuse(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["benchmark"] == "memory":
            return Outcome(status="failed", reason="Expected more than 1 value", bad_input=bad_input)
        return None

    launcher = FakeLauncher(MODEL, outcomes=refuse)
    report = standard_run(ask("run", batch_size=50, repeats=1), launcher, RecordingWatcher())
    assert report.exit_code == 0
    assert not any(section.title == "Failed" for section in report.sections)
    assert report.sections[-1].lines == (
        "The memory per sample is unknown; the largest batch that fits is unknown.",
        "Whether batch 2 fits is unknown: failed: Expected more than 1 value",
        "Whether batch 8 fits is unknown: failed: Expected more than 1 value",
    )


def test_a_failed_memory_measurement_counts_where_only_memory_was_requested() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="killed")

    launcher = FakeLauncher(MODEL, outcomes=fail)
    assert standard_run(ask("run"), launcher, RecordingWatcher(), parts=("memory",)).exit_code == 4


def test_memory_alone_trains_nothing_else() -> None:
    watcher = RecordingWatcher()
    report = standard_run(ask("run", strategy="ddp"), FakeLauncher(MODEL), watcher, parts=("memory",))
    assert {trial.settings["benchmark"] for trial, _ in watcher.launched} == {"memory"}
    assert report.exit_code == 0
    kinds = [entry["kind"] for entry in summary_of(report.path)["results"]["memory"]]
    assert kinds == ["measure"] * 2 + ["job"]


def test_communication_alone_trains_nothing() -> None:
    watcher = RecordingWatcher()
    report = standard_run(ask("run", batch_size=50, repeats=1), FakeLauncher(MODEL), watcher, parts=("comm",))
    assert {trial.settings["benchmark"] for trial, _ in watcher.launched} == {"comm"}
    (section,) = report.sections
    assert section.lines[0].startswith("all_reduce over 2 ranks")
    assert section.details[0] == "# Collective test starting: all_reduce_perf"
    launcher = FakeLauncher(MODEL)
    with pytest.raises(CannotRun, match="collectives require at least 2 ranks"):
        standard_run(ask("run", world_size=1), launcher, RecordingWatcher(), parts=("comm",))
    assert launcher.launched == []


def test_training_alone_measures_all_ranks_and_nothing_else() -> None:
    watcher = RecordingWatcher()
    report = standard_run(
        ask("run", world_size=[1, 2], batch_size=[50, 100], repeats=1),
        FakeLauncher(MODEL),
        watcher,
        parts=("training",),
    )
    assert {trial.world_size for trial, _ in watcher.launched} == {2}
    assert not any(trial.is_ablation for trial, _ in watcher.launched)
    titles = [section.title for section in report.sections]
    assert titles == ["=== DDP Scaling Benchmark ==="] * 2 + ["Side by side"]


def test_the_machine_section_lists_gpus_and_possible_ranks() -> None:
    gpus = tuple(Gpu(index=n, name=f"H{n}", memory_bytes=80 << 30, uuid=f"GPU-{n}") for n in range(2))
    machine = dataclasses.replace(TWO_CORES, gpus=gpus, backends=("gloo", "nccl"), cuda_version="13.0")
    watcher = RecordingWatcher()
    report = standard_run(ask("run", batch_size=50, repeats=1), FakeLauncher(MODEL, machine), watcher)
    lines = watcher.sections[0].lines
    assert "GPUs       : 2" in lines
    assert "  cuda:1  : H1, 80.0 GiB" in lines
    assert "Ranks      : up to 2, one GPU each" in lines
    assert summary_of(report.path)["config"]["device"] == "H0"


def planned(settings: Mapping[str, str], **options: Any) -> list[Trial]:
    """The training trials of a `run` with these flags."""
    flags = {
        name: tuple(Given(text, f"--{name}") for text in texts.split(",")) for name, texts in settings.items()
    }
    plan = plan_of(RunStudy(**options), Request(verb="run", flags=flags), FakeLauncher(MODEL))
    return [trial for trial in plan.trials if trial.benchmark == "train"]


def steps_of(settings: Mapping[str, str], **iterations: int) -> set[tuple[int, int]]:
    """(Warm-up steps, measured steps) of all training trials."""
    trials = [trial.settings for trial in planned(settings, **iterations)]
    return {
        (trial["warmup_steps"], trial["epochs"] * trial["steps_per_epoch"] - trial["warmup_steps"])
        for trial in trials
    }


@pytest.mark.parametrize(
    ("settings", "iterations", "steps"),
    [
        ({}, {"warmup": 3, "iters": 100}, {(3, 100)}),
        ({"warmup_steps": "8"}, {"iters": 7}, {(8, 7)}),
        ({"warmup_steps": "8"}, {"warmup": 4, "iters": 7}, {(4, 7)}),
        ({"steps_per_epoch": "30"}, {}, {(5, 25)}),
        ({"steps_per_epoch": "30"}, {"warmup": 10}, {(10, 20)}),
        ({"warmup_steps": "4,10"}, {"iters": 6}, {(4, 12), (10, 6)}),  # all make as many steps
    ],
)
def test_iters_are_measured_steps_and_warmup_those_before(
    settings: dict[str, str], iterations: dict[str, int], steps: set[tuple[int, int]]
) -> None:
    assert steps_of({"batch_size": "50", **settings}, **iterations) == steps


@pytest.mark.parametrize("name", ["steps_per_epoch", "epochs"])
def test_iters_and_steps_together_are_refused(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        steps_of({name: "30"}, iters=7)
    assert str(caught.value) == f"--iters cannot be used with {name}: each sets how long a launch measures"


def test_the_window_follows_from_the_budget_unless_it_is_given() -> None:
    def windows(**asked: str) -> set[float]:
        return {trial.settings["window"] for trial in planned(asked)}

    assert windows(budget="1h") == {1.5}
    (short,) = windows(budget="80s")
    assert 0.5 < short < 1.5
    assert windows(budget="5s") == {0.5}
    assert windows(window="0.8") == {0.8}


def test_without_jinja_the_standard_run_succeeds_without_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise CannotRun("the page requires jinja2")

    monkeypatch.setattr("scalescope.studies.report.page_of", missing)
    watcher = RecordingWatcher()
    report = standard_run(ask("run", batch_size=50, repeats=1), FakeLauncher(MODEL), watcher)
    assert report.page is None
    assert report.exit_code == 0
    assert any("There is no report.html: the page requires jinja2" in line for line in watcher.notes)
