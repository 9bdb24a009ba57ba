"""`run`: the main job."""

import dataclasses

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.machine import Gpu
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.studies.main_job import main_job

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(fixed_s=0.010, per_sample_s=0.0002, exposed_comm_s={2: 0.004, 4: 0.012})


def test_the_main_job_shows_the_machine_and_then_how_it_scales() -> None:
    watcher = RecordingWatcher()
    report = main_job(ask("run", batch_size=50), FakeLauncher(MODEL), watcher)
    assert report.exit_code == 0
    (machine,) = watcher.sections
    assert machine.title == "Machine"
    assert machine.lines[0].startswith("Host       : fake processor, 2 cores, 16 GiB")
    assert "2 ranks deliver" in report.sections[0].lines[0]
    rows = summary_of(report.path)["results"]["scaling"]
    assert [row["world_size"] for row in rows] == [1, 2]
    assert rows[1]["efficiency"] == pytest.approx(0.020 / 0.024)
    assert rows[1]["exposed_comm_s"] == pytest.approx(0.004)
    assert rows[1]["reading"] == "good"


def test_parts_that_are_not_built_are_named() -> None:
    watcher = RecordingWatcher()
    main_job(ask("run", batch_size=50), FakeLauncher(MODEL), watcher)
    for part in ("comm", "memory"):
        assert f"{part}: this part of the main job is not built yet and was not run." in watcher.notes


def test_only_parts_that_are_not_built_are_refused() -> None:
    launcher = FakeLauncher(MODEL)
    with pytest.raises(BadInput, match="nothing is left") as caught:
        main_job(ask("run"), launcher, RecordingWatcher(), parts=("comm", "memory"))
    assert caught.value.exit_code == 2
    assert launcher.launched == []


def test_training_alone_measures_all_ranks_and_nothing_else() -> None:
    watcher = RecordingWatcher()
    report = main_job(
        ask("run", world_size=[1, 2], batch_size=[50, 100]),
        FakeLauncher(MODEL),
        watcher,
        parts=("training",),
    )
    assert {trial.world_size for trial, _ in watcher.launched} == {2}
    assert {trial.settings["ablation"] for trial, _ in watcher.launched} == {"none"}
    assert [section.title for section in report.sections] == ["=== DDP Scaling Benchmark ==="] * 2


def test_the_machine_is_said_to_have_gpus_and_ranks_to_share_them() -> None:
    gpus = tuple(Gpu(index=n, name=f"H{n}", memory_bytes=80 << 30, uuid=f"GPU-{n}") for n in range(2))
    machine = dataclasses.replace(TWO_CORES, gpus=gpus, backends=("gloo", "nccl"), cuda_version="13.0")
    watcher = RecordingWatcher()
    report = main_job(ask("run", batch_size=50), FakeLauncher(MODEL, machine), watcher)
    lines = watcher.sections[0].lines
    assert "GPUs       : 2" in lines
    assert "  cuda:1  : H1, 80 GiB" in lines
    assert "Ranks      : up to 2, one GPU each" in lines
    assert summary_of(report.path)["config"]["device"] == "H0"
