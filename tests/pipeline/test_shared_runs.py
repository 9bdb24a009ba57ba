"""Runs that several commands share, one for each launch, as the steps of a job do."""

import dataclasses
import json
from pathlib import Path

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, RanksLost
from scalescope.results.run import load_run
from scalescope.studies.campaign import missing_launches
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.stored import present, recorded_host
from scalescope.studies.study import Report
from tests.builders.studies import memory, scale
from tests.pipeline.recording import RecordingWatcher, ask, ask_benchmark, summary_of
from tests.pipeline.test_memory_study import GPU, MODEL
from tests.simulated.launcher import CostModel, FakeLauncher

_ASKED = {"device": "cpu", "world_size": [1, 2], "batch_size": 32, "repeats": 3}


def _step(launch: int, launcher: FakeLauncher | None = None, request: Request | None = None) -> Report:
    launcher = launcher or FakeLauncher(CostModel())
    launcher.repeatable = False  # attached ranks
    request = dataclasses.replace(request or ask("scale", **_ASKED), only_launches=(launch,))
    return scale(request, launcher, RecordingWatcher(), most_ranks=2)


def _collect() -> tuple[Report, int]:
    """What the stored run shows, and how many launches are missing."""
    host = recorded_host(Path("run"), repeatable=False, ranks=2)
    planned = prepare(ScaleStudy(), ask("scale", **_ASKED)).on(host).plan.launches()
    run = load_run("run")
    return present(run), missing_launches(planned, run)


def test_one_command_per_launch_makes_the_same_run_as_a_single_command() -> None:
    missing = []
    for launch in range(3):
        _step(launch)
        missing.append(_collect()[1])
    assert missing == sorted(set(missing), reverse=True)
    collected, left = _collect()
    assert (collected.exit_code, left) == (0, 0)
    assert collected.run is not None
    launches = {result.launch for result in collected.run.results if result.settings["benchmark"] == "train"}
    assert launches == {0, 1, 2}
    orders = [result.order for result in collected.run.results]
    assert sorted(orders) == list(range(len(orders)))
    whole = ask("scale", **_ASKED, output_dir="whole")
    alone = FakeLauncher(CostModel())
    report = scale(whole, alone, RecordingWatcher(), most_ranks=2)
    assert report.sections[0] == collected.sections[0]
    ours, theirs = summary_of(Path("run")), summary_of(Path("whole"))
    assert ours["results"]["scaling"] == theirs["results"]["scaling"]


def test_a_step_that_is_run_again_measures_only_what_is_missing() -> None:
    _step(0)
    again = FakeLauncher(CostModel())
    _step(0, again)
    assert again.launched == []
    next_one = FakeLauncher(CostModel())
    _step(1, next_one)
    assert {launch for _, launch in next_one.launched} == {1}


def test_only_the_last_step_searches() -> None:
    purposes = []
    for launch in (0, 1):
        asked = dataclasses.replace(ask_benchmark("memory", repeats=2), only_launches=(launch,))
        watcher = RecordingWatcher()
        memory(asked, FakeLauncher(MODEL, GPU), watcher, most_ranks=1)
        purposes.append({trial.settings["purpose"] for trial, _ in watcher.launched})
    assert "search" not in purposes[0]
    assert "search" in purposes[1]


def test_all_steps_share_one_budget() -> None:
    request = ask("scale", **_ASKED, budget="1h")
    _step(0, request=request)
    path = Path("run/trials.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, "duration_s": 4000.0}) + "\n" for line in lines))
    launcher = FakeLauncher(CostModel())
    launcher.repeatable = False
    watcher = RecordingWatcher()
    scale(dataclasses.replace(request, only_launches=(1,)), launcher, watcher, most_ranks=2)
    assert launcher.launched == []
    end = load_run("run").record.end
    assert end is not None and (end.why, end.budget_s, end.next_launch_s) == ("budget", 3600.0, 4000.0)
    assert end.missing > 0
    assert sum(note.startswith("The budget of ") for note in watcher.notes) == 1


def test_a_resubmitted_job_has_its_own_budget() -> None:
    request = ask("scale", **_ASKED, budget="1h")
    _step(0, request=request)
    path = Path("run/trials.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    earlier = {"duration_s": 3600 / len(lines), "started_at": "2026-01-01T10:00:00.000+00:00"}
    path.write_text("".join(json.dumps({**line, **earlier}) + "\n" for line in lines))
    launched = []
    for since in ("2026-01-01T09:59:59.000+00:00", "2026-01-01T11:30:00.000+00:00"):
        launcher = FakeLauncher(CostModel())
        _step(1, launcher, dataclasses.replace(request, budget_since=since))
        launched.append(len(launcher.launched))
    assert launched[0] == 0 < launched[1]


def test_a_run_without_its_machine_cannot_be_read() -> None:
    with pytest.raises(CannotRun, match="does not record where the run was measured"):
        recorded_host(Path("nowhere"), repeatable=True, ranks=None)


def _ends_all_ranks(trial: Trial, launch: int) -> Outcome | None:
    if trial.is_training and trial.world_size == 2 and not trial.is_ablation:
        raise RanksLost("rank 0's worker has ended")
    return None


def test_a_trial_that_ends_all_ranks_is_recorded_and_comes_last_next_time() -> None:
    for _ in range(2):
        last = FakeLauncher(CostModel(), outcomes=_ends_all_ranks)
        with pytest.raises(RanksLost) as ended:
            _step(0, last)
        assert ended.value.exit_code == 4
    (lost,) = load_run(Path("run")).of_status("failed")
    assert lost.key == last.launched[-1]
    assert lost.reason == "rank 0's worker has ended"
    healthy = FakeLauncher(CostModel())
    _step(0, healthy)
    assert healthy.launched == [lost.key]  # all others are there


def test_commands_that_share_a_run_must_name_its_folder() -> None:
    request = ask("scale", **_ASKED)
    alone = dataclasses.replace(
        request, flags={name: flag for name, flag in request.flags.items() if name != "output_dir"}
    )
    with pytest.raises(BadInput, match="--only-launch requires --output-dir"):
        _step(0, request=alone)
