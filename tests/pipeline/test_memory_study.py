"""`memory` through the fake launcher: the truth is recovered, the search ends, running out is an answer."""

import dataclasses
from typing import Any

import pytest

from scalescope.errors import Interrupted
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.studies.memory import memory
from scalescope.studies.request import Request

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(
    parameter_bytes=40_000_000,
    activation_bytes=1_000_000,
    temporary_bytes=500_000,
    device_bytes=1_000_000_000,
)
LARGEST = (1_000_000_000 - 80_500_000) // 1_000_000
GPU = dataclasses.replace(
    TWO_CORES,
    gpus=(Gpu(index=0, name="H", memory_bytes=1_000_000_000, uuid="GPU-0"),),
    backends=("gloo", "nccl"),
    cuda_version="13.0",
)


def request(**asked: Any) -> Request:
    made = ask("memory", **asked)
    flags = {n: v for n, v in made.flags.items() if n not in ("steps_per_epoch", "warmup_steps")}
    return dataclasses.replace(made, benchmark="memory", flags=flags)


def job_of(path: Any) -> dict[str, Any]:
    (job,) = [one for one in summary_of(path)["results"]["memory"] if one["kind"] == "job"]
    found: dict[str, Any] = job
    return found


def test_the_truth_is_recovered() -> None:
    watcher = RecordingWatcher()
    report = memory(request(), FakeLauncher(MODEL, GPU), watcher)
    assert report.exit_code == 0
    job = job_of(report.path)
    assert job["bytes_per_sample"] == pytest.approx(1_000_000)
    assert job["base_bytes"] == pytest.approx(80_500_000)
    assert job["activation_bytes_per_sample"] == pytest.approx(1_000_000)
    assert job["largest_batch_is"] == "tried" and job["search_finished"]
    assert job["largest_batch"] == LARGEST < job["smallest_batch_that_fails"]
    searched = [trial for trial, _ in watcher.launched if trial.settings["purpose"] == "search"]
    assert 2 <= len(searched) <= 3
    first = report.sections[0].lines[0]
    assert first == (
        "A sample costs 977 KiB, 977 KiB of it activations, on top of 76.8 MiB; "
        f"the largest batch that fits 954 MiB is {LARGEST} (tried)."
    )
    assert not any(section.title == "Failed" for section in report.sections)


def test_every_trial_is_an_entry_in_bytes() -> None:
    report = memory(request(batch_size=[2, 5000], optimizer="adamw", search="no"), FakeLauncher(MODEL, GPU), (
        RecordingWatcher()
    ))  # fmt: skip
    assert report.exit_code == 0
    small, large, job = summary_of(report.path)["results"]["memory"]
    assert small["measured_bytes"]["optimizer"] == 80_000_000
    assert small["measured_bytes"]["peak"] == 82_500_000
    assert small["forecast_bytes"]["peak"] == 82_500_000 + 80_000_000
    assert small["difference"] == pytest.approx(80 / 82.5)
    assert (large["status"], large["reason"]) == ("oom", "rank 0 failed at step 0: out of memory")
    assert large["forecast_bytes"] is None and large["measured_bytes"]["peak"] is None
    saved = {(one["name"], one["ranks"]): one["saved_bytes"] for one in job["savings"]}
    assert saved["zero1", 2] == 40_000_000
    assert saved["bf16", None] == 1_000_000
    assert saved["checkpointing", None] is None
    assert "out of memory" in str(report.sections[1].table)


def test_a_host_is_not_filled() -> None:
    watcher = RecordingWatcher()
    report = memory(request(), FakeLauncher(MODEL), watcher)
    assert len(watcher.launched) == 4
    job = job_of(report.path)
    assert job["largest_batch_is"] == "calculated"
    assert job["largest_batch"] == (TWO_CORES.memory_bytes - 80_500_000) // 1_000_000
    assert "(calculated, not tried: --memory-limit tries)" in report.sections[0].lines[0]
    assert report.next_step is not None and "--memory-limit" in report.next_step


def test_a_limit_on_the_cpu_is_searched() -> None:
    report = memory(request(memory_limit="200000000"), FakeLauncher(MODEL), RecordingWatcher())
    assert job_of(report.path)["largest_batch"] in (117, 118, 119)


def test_where_even_one_sample_does_not_fit_the_answer_is_that() -> None:
    report = memory(request(memory_limit="50000000"), FakeLauncher(MODEL), RecordingWatcher())
    assert report.exit_code == 0
    assert "no batch fits" in report.sections[0].lines[0]
    assert job_of(report.path)["largest_batch"] is None


def test_strategies_are_searched_each_by_itself() -> None:
    machine = dataclasses.replace(GPU, gpus=GPU.gpus * 2)
    watcher = RecordingWatcher()
    report = memory(request(world_size=[1, 2]), FakeLauncher(MODEL, machine), watcher)
    jobs = [one for one in summary_of(report.path)["results"]["memory"] if one["kind"] == "job"]
    assert [(job["strategy"], job["largest_batch"]) for job in jobs] == [
        ("single", LARGEST),
        ("ddp", LARGEST),
    ]
    assert report.sections[0].lines[1].startswith("ddp, 2 ranks: A sample costs")


def test_an_interrupted_search_goes_on_where_it_was() -> None:
    tried: list[int] = []

    def interrupt(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["purpose"] == "search":
            tried.append(trial.rank_batch_size)
            if len(tried) == 2:
                raise Interrupted(2)
        return None

    with pytest.raises(Interrupted):
        memory(request(), FakeLauncher(MODEL, GPU, outcomes=interrupt), RecordingWatcher())
    watcher = RecordingWatcher()
    report = memory(request(resume=True), FakeLauncher(MODEL, GPU), watcher)
    again = [trial.rank_batch_size for trial, _ in watcher.launched]
    assert again[0] == tried[1] and tried[0] not in again
    assert job_of(report.path)["largest_batch"] == LARGEST


def test_a_finished_run_is_not_searched_again() -> None:
    memory(request(), FakeLauncher(MODEL, GPU), RecordingWatcher())
    watcher = RecordingWatcher()
    memory(request(resume=True), FakeLauncher(MODEL, GPU), watcher)
    assert watcher.launched == []


def test_a_try_that_crashes_is_a_failure_and_ends_the_search() -> None:
    def crash(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["purpose"] == "search":
            return Outcome(status="failed", reason="killed")
        return None

    watcher = RecordingWatcher()
    report = memory(request(), FakeLauncher(MODEL, GPU, outcomes=crash), watcher)
    assert report.exit_code == 4
    assert sum(trial.settings["purpose"] == "search" for trial, _ in watcher.launched) == 1
    assert "the search was not finished" in report.sections[0].lines[0]


def test_a_dry_run_shows_the_batches() -> None:
    report = memory(request(dry_run=True), FakeLauncher(MODEL), RecordingWatcher())
    table = report.sections[0].table
    assert table is not None
    assert [row[0] for row in table.rows][-1] == "memory, single, 1 rank, batch 8"
    assert table.rows[0][1] == "memory"
