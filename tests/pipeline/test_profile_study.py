"""`train --profile` from request to summary: recorded launches are kept apart from timed ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.validity import judge
from scalescope.results.traces.events import trace_name
from scalescope.studies.stored import explain
from scalescope.studies.trace import Profiling, with_nsys
from tests.builders.requests import with_gpus
from tests.builders.studies import train
from tests.builders.traces import cpu_step, profile_result, steps_of, write_trace
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(fixed_s=0.010, per_sample_s=0.001)


def recorded(trial: Trial, launch: int) -> Outcome | None:
    """Launches that record write a trace of known steps for every rank, with one exchange in each."""
    if trial.settings["benchmark"] != "profile":
        return None
    for rank in range(trial.world_size):
        write_trace(Path("run", trace_name(trial.trial_id, launch, rank)), steps_of(cpu_step()))
    ranks = tuple(range(trial.world_size))
    return judge(trial, profile_result(trial, ranks, counters={"communication_events": 3}).ranks)


def without_communication(trial: Trial, launch: int) -> Outcome | None:
    if trial.settings["benchmark"] != "profile":
        return None
    return judge(trial, profile_result(trial, (), counters={"communication_events": 0}).ranks)


def blind(trial: Trial, launch: int) -> Outcome | None:
    """A profiler that sees the host and not the GPU."""
    if trial.settings["benchmark"] != "profile":
        return None
    counters = {"communication_events": 3, "device_events": 0}
    return judge(trial, profile_result(trial, (), counters=counters).ranks)


def test_every_configuration_is_recorded_once_timed_as_often_as_asked_and_explained() -> None:
    watcher = RecordingWatcher()
    request = ask("train", world_size=2, batch_size=[10, 20], repeats=3)
    launcher = FakeLauncher(MODEL, outcomes=recorded)
    report = train(request, launcher, watcher, profiling=Profiling())
    assert report.exit_code == 0
    kinds = [(trial.settings["benchmark"], trial.settings["batch_size"]) for trial, _ in watcher.launched]
    assert sorted(kinds) == sorted([("train", 10), ("train", 20)] * 3 + [("profile", 10), ("profile", 20)])
    results = summary_of(report.path)["results"]
    step_s = {row["batch_size"]: row["step_time_s"]["mean"] for row in results["training"]}
    assert step_s == pytest.approx({10: 0.020, 20: 0.030})  # profiled steps are not used as timings
    assert [profile["traced_step_s"] for profile in results["profile"]] == pytest.approx([0.12, 0.12])
    assert [profile["untraced_step_s"] for profile in results["profile"]] == pytest.approx([0.02, 0.03])
    assert [profile["overlap"] for profile in results["profile"]] == pytest.approx([0.5, 0.5])
    title = "Trace · ddp, 2 ranks, batch 10 · ms per step"
    assert title in [section.title for section in report.sections]
    assert title in [section.title for section in explain(Path("run"))]
    assert title in Path("run/performance_report.txt").read_text()


def test_a_dry_run_counts_the_recorded_launch() -> None:
    request = ask("train", world_size=2, repeats=5, dry_run=True)
    (section,) = train(request, FakeLauncher(MODEL), RecordingWatcher(), profiling=Profiling()).sections
    assert section.table is not None
    assert [row[1] for row in section.table.rows] == ["training", "a trace"]
    assert section.lines[0].startswith("1 trial × 5 launches = 5 launches, and 1 trial once, ")


@pytest.mark.parametrize(
    ("outcomes", "gpus", "reason"),
    [
        (without_communication, 0, "has no communication, although its ranks communicate"),
        (blind, 2, "has no kernels"),
    ],
)
def test_a_trace_of_less_than_happened_is_an_invalid_launch_and_no_profile(
    outcomes: Any, gpus: int, reason: str
) -> None:
    launcher = FakeLauncher(MODEL, with_gpus(gpus) if gpus else TWO_CORES, outcomes=outcomes)
    request = ask("train", world_size=2, device="cuda" if gpus else "cpu")
    report = train(request, launcher, RecordingWatcher(), profiling=Profiling())
    assert report.exit_code != 0
    results = summary_of(report.path)["results"]
    assert results["profile"] == []
    assert [row["status"] for row in results["training"]] == ["ok", "invalid"]
    assert results["training"][1]["reason"].startswith(f"the trace of rank 0 {reason}")


def test_only_world_sizes_with_the_chosen_rank_are_profiled() -> None:
    launcher = FakeLauncher(MODEL, outcomes=recorded)
    watcher = RecordingWatcher()
    report = train(ask("train", world_size=[1, 2]), launcher, watcher, profiling=Profiling(ranks="1"))
    assert report.exit_code == 0
    launched = {(trial.settings["benchmark"], trial.world_size) for trial, _ in watcher.launched}
    assert launched == {("train", 1), ("train", 2), ("profile", 2)}
    (profile,) = summary_of(report.path)["results"]["profile"]
    assert profile["world_size"] == 2


def test_the_command_for_nsight_systems_is_written_where_nsys_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    launcher = FakeLauncher(MODEL, outcomes=recorded)
    asked = Profiling(steps=4, ranks="1", nsys=True)
    report = train(ask("train", world_size=2), launcher, RecordingWatcher(), profiling=asked)
    report = with_nsys(report, asked, run=True)
    script = Path("run/traces/nsys.sh").read_text()
    assert script.startswith("#!/bin/sh\nexec nsys ")
    assert "--profile-steps=4" in script and "--profile-ranks=1" in script
    assert report.sections[-1].lines == (
        "Nsight Systems: run/traces/nsys.sh: nsys is not installed here; the command is in the file.",
    )
