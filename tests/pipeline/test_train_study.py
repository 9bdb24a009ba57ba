"""`train` from request to summary."""

import dataclasses
import json
from pathlib import Path

import pytest

from scalescope.errors import StorageError
from scalescope.experiment.machine import PrecisionSupport
from scalescope.results.result import SCHEMA_VERSION, to_json
from scalescope.results.run import load_run
from tests.builders.studies import train
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(fixed_s=0.010, per_sample_s=0.001, wrapper_s=0.002, exposed_comm_s={2: 0.005})


def test_the_summary_holds_the_true_numbers() -> None:
    asked = ask("train", world_size=[1, 2], batch_size=[10, 20])
    report = train(asked, FakeLauncher(MODEL), RecordingWatcher())
    assert report.exit_code == 0
    titles = {"1": "=== Training Benchmark (single) ===", "2": "=== DDP Scaling Benchmark ==="}
    *configurations, last = [section for section in report.sections if section.title]
    assert last.title == "Side by side"
    assert sorted(section.lines[0].split()[-1] for section in configurations) == ["1", "1", "2", "2"]
    assert all(section.title == titles[section.lines[0].split()[-1]] for section in configurations)
    summary = summary_of(report.path)
    means = {
        (row["world_size"], row["batch_size"]): row["step_time_s"]["mean"]
        for row in summary["results"]["training"]
    }
    assert means == pytest.approx({(1, 10): 0.020, (1, 20): 0.030, (2, 10): 0.027, (2, 20): 0.037})
    for row in summary["results"]["training"]:
        samples = row["batch_size"] * row["world_size"]
        assert row["samples_per_s"] == pytest.approx(samples / row["step_time_s"]["mean"])
        assert row["step_time_s"]["ci95"] is None
        assert row["status"] == "ok"


def test_the_summary_names_what_was_run() -> None:
    report = train(ask("train", world_size=2, name="my-run"), FakeLauncher(MODEL), RecordingWatcher())
    summary = summary_of(report.path)
    assert summary["schema_version"] == SCHEMA_VERSION
    assert summary["name"] == "my-run"
    assert summary["verb"] == "train"
    assert summary["world_size"] == 2
    assert summary["config"] == {
        "warmup_iters": 3,
        "benchmark_iters": 5,
        "device": "fake processor",
        "window_s": None,
    }
    assert summary["results"]["scaling"] == []


def test_a_sweep_ends_with_all_configurations_side_by_side() -> None:
    request = ask("train", batch_size=[10, 20], optimizer=["sgd", "adamw"])
    table = train(request, FakeLauncher(MODEL), RecordingWatcher()).sections[-1].table
    assert table is not None
    assert table.columns == ("configuration", "optimizer", "step (ms)", "samples/s", "95 % interval")
    assert sorted(row[1:4] for row in table.rows) == sorted(
        (optimizer, step, rate)
        for optimizer in ("sgd", "adamw")
        for step, rate in (("20.0", "500.0"), ("30.0", "666.7"))
    )
    assert {row[-1] for row in table.rows} == {"—"}  # one launch has no interval


def test_the_run_folder_holds_everything() -> None:
    report = train(ask("train", repeats=3), FakeLauncher(MODEL), RecordingWatcher())
    assert report.path == Path("run")
    names = {path.name for path in Path("run").iterdir()}
    assert {"experiment.yaml", "environment.json", "trials.jsonl", "results.json", "ranks", "logs"} <= names
    assert load_run("run").environment["machine"]["cpu_model"] == "fake processor"
    run = load_run("run")
    assert [result.launch for result in run.results] == [0, 1, 2]
    assert [result.order for result in run.results] == [0, 1, 2]
    assert {result.environment_id for result in run.results} == {run.environment["environment_id"]}


def test_each_launch_is_on_disk_before_the_next_begins() -> None:
    stored: list[int] = []

    class Watcher(RecordingWatcher):
        def launching(self, trial: object, launch: int, *, label: str | None = None) -> None:
            stored.append(len(load_run("run").results))

    train(ask("train", repeats=4), FakeLauncher(MODEL), Watcher())
    assert stored == [0, 1, 2, 3]


def test_the_watcher_is_called_for_every_event() -> None:
    watcher = RecordingWatcher()
    train(ask("train", world_size=2, repeats=2), FakeLauncher(MODEL), watcher)
    assert watcher.begun == [(2, 0)]
    assert watcher.budgets == [None]
    assert [launch for _, launch in watcher.launched] == [0, 1]
    assert [[line.split()[1] for line in lines] for lines in watcher.placements] == [["0]", "1]"]] * 2
    assert watcher.fractions == [1.0, 1.0]
    assert [to_json(result) for result in watcher.results] == [
        json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()
    ]


def test_without_a_folder_the_run_goes_below_runs_and_latest_points_at_it() -> None:
    first = train(ask("train", output_dir=None), FakeLauncher(MODEL), RecordingWatcher())
    second = train(ask("train", output_dir=None), FakeLauncher(MODEL), RecordingWatcher())
    assert first.path is not None and second.path is not None
    assert first.path != second.path
    assert first.path.parent == Path("runs")
    assert Path("runs/latest").resolve() == second.path.resolve()


def test_a_dry_run_launches_and_writes_nothing() -> None:
    launcher = FakeLauncher(MODEL)
    report = train(ask("train", world_size=[1, 2], repeats=5, dry_run=True), launcher, RecordingWatcher())
    assert launcher.launched == []
    assert list(Path().iterdir()) == []
    (section,) = report.sections
    assert section.table is not None
    assert len(section.table.rows) == 2
    assert section.lines[0].startswith("2 trials × 5 launches = 10 launches, ")


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_emulated_precision_is_measured_with_a_note(dry_run: bool) -> None:
    bf16 = PrecisionSupport(name="bf16", native=False, slowdown=96.0)
    launcher = FakeLauncher(MODEL, dataclasses.replace(TWO_CORES, precisions=(bf16,)))
    watcher = RecordingWatcher()
    report = train(ask("train", precision="bf16", dry_run=dry_run), launcher, watcher)
    assert any("takes about 96 times as long as in fp32" in note for note in watcher.notes)
    if dry_run:
        formats = "Number formats of the CPU: bf16 emulated (96 times as long as fp32)."
        assert formats in report.sections[0].lines
    else:
        assert len(launcher.launched) == 1
        stored = load_run("run").environment["machine"]["precisions"]
        assert stored == [{"name": "bf16", "native": False, "slowdown": 96.0}]


def test_attached_ranks_are_launched_once_with_a_note() -> None:
    launcher = FakeLauncher(MODEL)
    launcher.repeatable = False
    watcher = RecordingWatcher()
    train(ask("train", repeats=5), launcher, watcher, most_ranks=4)
    assert len(launcher.launched) == 1
    assert watcher.launched[0][0].world_size == 4
    assert any("single launch" in note for note in watcher.notes)
    assert load_run("run").record.repeatable is False


def test_a_folder_that_cannot_be_made_is_refused_before_launching() -> None:
    Path("file").write_text("in the way")
    launcher = FakeLauncher(MODEL)
    with pytest.raises(StorageError) as caught:
        train(ask("train", output_dir="file/run"), launcher, RecordingWatcher())
    assert caught.value.exit_code == 7
    assert launcher.launched == []
