"""`memory` through the fake launcher: the truth is recovered, the search ends, running out is an answer."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.durations import estimated_launch_s
from scalescope.errors import Interrupted
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from tests.builders.studies import memory
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask_benchmark, summary_of

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


def job_of(path: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] = summary_of(path)["results"]["memory"]
    (job,) = [row for row in rows if row["kind"] == "job"]
    return job


def test_the_truth_is_recovered() -> None:
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory"), FakeLauncher(MODEL, GPU), watcher)
    assert report.exit_code == 0
    job = job_of(report.path)
    assert job["bytes_per_sample"] == pytest.approx(1_000_000)
    assert job["base_bytes"] == pytest.approx(80_500_000)
    assert job["activation_bytes_per_sample"] == pytest.approx(1_000_000)
    assert job["largest_batch_is"] == "tried" and job["search_finished"]
    assert job["largest_batch"] == LARGEST < job["smallest_batch_that_fails"]
    searched = [trial for trial, _ in watcher.launched if trial.settings["purpose"] == "search"]
    assert 2 <= len(searched) <= 3
    assert f"batch {LARGEST} fits" in report.sections[0].lines[0]
    assert not any(section.title == "Failed" for section in report.sections)


def test_every_trial_is_an_entry_in_bytes() -> None:
    asked = ask_benchmark("memory", batch_size=[2, 5000], optimizer="adamw", search="no")
    report = memory(asked, FakeLauncher(MODEL, GPU), RecordingWatcher())
    assert report.exit_code == 0
    small, large, job = summary_of(report.path)["results"]["memory"]
    assert small["measured_bytes"]["optimizer"] == 80_000_000
    assert small["measured_bytes"]["peak"] == 82_500_000
    assert small["forecast_bytes"]["peak"] == 82_500_000 + 80_000_000
    assert small["difference"] == pytest.approx(80 / 82.5)
    assert (large["status"], large["reason"]) == ("oom", "rank 0 failed at step 0: out of memory")
    assert large["forecast_bytes"] is None and large["measured_bytes"]["peak"] is None
    saved = {(saving["name"], saving["ranks"]): saving["saved_bytes"] for saving in job["savings"]}
    assert saved["zero1", 2] == 40_000_000
    assert saved["bf16", None] == 1_000_000
    assert saved["checkpointing", None] is None
    assert "out of memory" in str(report.sections[1].table)


def test_host_memory_is_not_filled_by_the_search() -> None:
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory"), FakeLauncher(MODEL), watcher)
    assert len(watcher.launched) == 4
    job = job_of(report.path)
    assert job["largest_batch_is"] == "calculated"
    assert job["largest_batch"] == (TWO_CORES.memory_bytes - 80_500_000) // 1_000_000
    assert "(calculated; to try it: --memory-limit)" in report.sections[0].lines[0]
    assert report.next_step is not None and "--memory-limit" in report.next_step.argv


def test_a_limit_on_the_cpu_is_searched() -> None:
    report = memory(
        ask_benchmark("memory", memory_limit="200000000"), FakeLauncher(MODEL), RecordingWatcher()
    )
    assert job_of(report.path)["largest_batch"] in (117, 118, 119)


def test_where_not_even_one_sample_fits_none_fits_is_the_result() -> None:
    report = memory(ask_benchmark("memory", memory_limit="50000000"), FakeLauncher(MODEL), RecordingWatcher())
    assert report.exit_code == 0
    job = job_of(report.path)
    assert (job["largest_batch"], job["largest_batch_is"]) == (None, "none_fits")
    assert "not even batch 1 fits" in report.sections[0].lines[0]


def test_without_a_search_smaller_batches_than_a_failing_one_are_unknown() -> None:
    asked = ask_benchmark("memory", memory_limit="50000000", batch_size=64, search="no")
    report = memory(asked, FakeLauncher(MODEL), RecordingWatcher())
    job = job_of(report.path)
    assert (job["largest_batch"], job["largest_batch_is"]) == (None, "unknown")
    assert "batch 64 does not fit in 47.7 MiB" in report.sections[0].lines[0]


def test_each_strategy_has_its_own_search() -> None:
    machine = dataclasses.replace(GPU, gpus=GPU.gpus * 2)
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory", world_size=[1, 2]), FakeLauncher(MODEL, machine), watcher)
    jobs = [row for row in summary_of(report.path)["results"]["memory"] if row["kind"] == "job"]
    assert [(job["strategy"], job["largest_batch"]) for job in jobs] == [
        ("single", LARGEST),
        ("ddp", LARGEST),
    ]
    assert report.sections[0].lines[1].startswith("ddp, 2 ranks: Each sample takes")


def test_an_interrupted_search_continues_where_it_stopped() -> None:
    tried: list[int] = []

    def interrupt(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["purpose"] == "search":
            tried.append(trial.rank_batch_size)
            if len(tried) == 2:
                raise Interrupted(2)
        return None

    with pytest.raises(Interrupted):
        memory(ask_benchmark("memory"), FakeLauncher(MODEL, GPU, outcomes=interrupt), RecordingWatcher())
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory", resume=True), FakeLauncher(MODEL, GPU), watcher)
    again = [trial.rank_batch_size for trial, _ in watcher.launched]
    assert again[0] == tried[1] and tried[0] not in again
    assert job_of(report.path)["largest_batch"] == LARGEST
    watcher = RecordingWatcher()  # and a finished run is not searched again
    memory(ask_benchmark("memory", resume=True), FakeLauncher(MODEL, GPU), watcher)
    assert watcher.launched == []


def test_a_crash_during_the_search_ends_it_and_is_shown() -> None:
    def crash(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["purpose"] == "search":
            return Outcome(status="failed", reason="killed")
        return None

    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory"), FakeLauncher(MODEL, GPU, outcomes=crash), watcher)
    assert report.exit_code == 0
    assert not any(section.title == "Failed" for section in report.sections)
    assert sum(trial.settings["purpose"] == "search" for trial, _ in watcher.launched) == 1
    verdict, remark = report.sections[0].lines
    assert "the search was not finished" in verdict
    assert remark == f"Whether batch {LARGEST} fits is unknown: failed: killed"


def test_a_dry_run_shows_the_batches() -> None:
    report = memory(ask_benchmark("memory", dry_run=True), FakeLauncher(MODEL), RecordingWatcher())
    table = report.sections[0].table
    assert table is not None
    assert [row[0] for row in table.rows][-1] == "memory, single, 1 rank, batch 8"
    assert table.rows[0][1] == "memory"


def purposes(watcher: RecordingWatcher) -> dict[int, str]:
    return {trial.micro_batch_size: str(trial.settings["purpose"]) for trial, _ in watcher.launched}


def test_only_one_batch_of_a_job_has_the_long_forecasts() -> None:
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory"), FakeLauncher(MODEL), watcher)
    assert purposes(watcher) == {1: "compare", 2: "measure", 4: "compare", 8: "compare"}
    assert job_of(report.path)["savings_at_batch"] == 2
    rows = summary_of(report.path)["results"]["memory"][:-1]
    assert {row["kind"] for row in rows} == {"measure"}


def test_a_pipeline_starts_with_one_sample_per_rank_and_gets_no_search_hint() -> None:
    watcher = RecordingWatcher()
    report = memory(ask_benchmark("memory", strategy="pipeline", world_size=2), FakeLauncher(MODEL), watcher)
    assert sorted(purposes(watcher)) == [2, 4, 8, 16]
    assert "--memory-limit" not in report.sections[0].lines[0]
    assert report.next_step is not None
    assert report.next_step.argv[1] == "train"
    assert report.next_step.argv[-2:] == ("--batch-size", "2,16")
    watcher = RecordingWatcher()
    memory(
        ask_benchmark("memory", strategy="pipeline", world_size=2, microbatches=6, output_dir="other"),
        FakeLauncher(MODEL),
        watcher,
    )
    assert sorted(purposes(watcher)) == [6, 12, 24, 48]


def test_user_models_are_measured_only_with_the_default_batch() -> None:
    watcher = RecordingWatcher()
    own = f"{Path(__file__).parents[2] / 'examples/own_model.py'}:build"
    memory(ask_benchmark("memory", workload=own), FakeLauncher(MODEL), watcher)
    assert purposes(watcher) == {32: "measure"}
    trial = watcher.launched[0][0]
    kinds = ("search", "compare", "brief", "measure")  # with ever longer forecasts
    times = [estimated_launch_s(trial.replace(purpose=purpose)) for purpose in kinds]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("machine", "asked", "hint"),
    [
        (TWO_CORES, {}, "--memory-limit"),
        (TWO_CORES, {"search": "no"}, "leave out --no-search and add --memory-limit"),
        (GPU, {"search": "no"}, "leave out --no-search"),
        (TWO_CORES, {"search": "no", "memory_limit": "200000000"}, "leave out --no-search"),
    ],
)
def test_hints_name_only_the_flags_that_are_missing(machine: Any, asked: dict[str, Any], hint: str) -> None:
    report = memory(ask_benchmark("memory", **asked), FakeLauncher(MODEL, machine), RecordingWatcher())
    assert f"(calculated; to try it: {hint})" in report.sections[0].lines[0]
    assert report.next_step is not None
    assert ("--memory-limit" in report.next_step.argv) == ("--memory-limit" in hint)


def test_without_optimizer_state_zero1_is_a_line_instead_of_a_row() -> None:
    report = memory(ask_benchmark("memory"), FakeLauncher(MODEL), RecordingWatcher())
    savings = report.sections[2]
    assert savings.lines == ("The optimizer keeps no state: ZeRO-1 saves nothing.",)
    assert "ZeRO-1" not in str(savings.table)


def test_a_data_set_smaller_than_the_batch_ends_the_search() -> None:
    def few(trial: Trial, launch: int) -> Outcome | None:
        if trial.micro_batch_size <= 100:
            return None
        counters = {"measured/peak": 180_000_000, "data/samples": 100}
        record = RankRecord(rank=0, host="h", device="cpu", placement="p", counters=counters)
        return Outcome(status="ok", records=[record])

    watcher = RecordingWatcher()
    report = memory(
        ask_benchmark("memory", memory_limit="500000000"), FakeLauncher(MODEL, outcomes=few), watcher
    )
    assert sum(trial.settings["purpose"] == "search" for trial, _ in watcher.launched) == 1
    job = job_of(report.path)
    assert (job["largest_batch"], job["largest_batch_is"]) == (100, "all_samples")
    assert job["bytes_per_sample"] == pytest.approx(1_000_000)
