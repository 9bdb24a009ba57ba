"""Runs as jobs: submitted, followed, collected; cancelled and continued; sent back to the queue."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from scalescope.report.results_json import results_json
from scalescope.results.result import Result
from scalescope.results.run import load_run
from tests.conftest import TINY
from tests.gloo.real_runs import FinishedRun, StartedRun, read_results
from tests.slurm.cluster import NODES
from tests.slurm.conftest import Commands, driven_by
from tests.speed import patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]

_JOB = ("--launcher=slurm", "--nodes=2")
_SCALE = ("scale", *TINY, "--world-size=1,2", "--no-waterfall", "--repeats=2")
_LONGER = tuple(flag.replace("epoch=8", "epoch=400") for flag in _SCALE)  # enough to be stopped on the way


def _job_of(folder: Path) -> str:
    return str(json.loads((folder / "slurm/job.json").read_text())["job_id"])


def _wait_for_results(run: StartedRun) -> None:
    run.wait_until(lambda: len(read_results(run.folder)) > 0, "result of the job", within_s=200)


def _assert_complete(finished: FinishedRun) -> None:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    run = load_run(finished.folder)  # every line is held against the schema; what does not fit is a warning
    assert run.warnings == ()
    assert finished.summary == json.loads(json.dumps(results_json(run)))  # rebuilt from the trials
    assert {result.status for result in run.results} == {"ok"}
    launches = {(result.settings["world_size"], result.launch) for result in run.results}
    assert launches == {(world, launch) for world in (1, 2) for launch in (0, 1)}
    rows = finished.summary["results"]["scaling"]
    assert [row["world_size"] for row in rows] == [1, 2]
    assert rows[1]["ci95_efficiency"] is not None  # launches are independent, so there is an interval


def _left_and_preempted(commands: Commands) -> tuple[FinishedRun, FinishedRun]:
    """One job: it is left alone while it runs, followed again, preempted, and finishes."""
    run = commands.start(*_LONGER, *_JOB)
    run.wait_until(lambda: "is running" in run.stdout, "running job", within_s=200)
    job = _job_of(run.folder)
    run.send(signal.SIGHUP)
    stopped = run.finish(200)
    followed = commands.start(*_LONGER, *_JOB, "--resume")
    followed.wait_until(lambda: f"Job {job} is running." in followed.stdout, "job to follow", within_s=200)
    _wait_for_results(followed)
    commands.ask("scancel", "--signal=USR1", "--batch", job)
    finished = followed.finish(300)
    assert followed.leftovers() == []
    return stopped, finished


@driven_by(_left_and_preempted)
def test_a_job_on_two_nodes_is_submitted_followed_and_collected(outcome: Any) -> None:
    stopped, finished = outcome
    _assert_complete(finished)
    job = _job_of(finished.folder)
    assert f"Job {job}: 2 ranks on 2 nodes, 2 launches." in stopped.stdout
    assert f"Job {job} is running." in finished.stdout
    assert "weak scaling" in finished.stdout
    assert "Attached ranks make one launch" not in finished.stdout
    done = [result for result in finished.results if result["status"] == "ok"]
    both = [result for result in done if result["settings"]["world_size"] == 2]
    assert {tuple(rank["host"] for rank in result["ranks"]) for result in both} == {NODES}
    assert len({result["order"] for result in done}) == len(done)
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)


@driven_by(_left_and_preempted)
def test_a_lost_connection_leaves_the_job_to_be_followed_through_the_queue_again(outcome: Any) -> None:
    stopped, finished = outcome
    job = _job_of(finished.folder)
    assert stopped.returncode == 129
    assert f"job {job} is still running; --resume" in stopped.stderr
    output = (finished.folder / f"slurm/slurm-{job}.out").read_text()
    assert "requeued" in output


def _cancelled_and_resumed(commands: Commands) -> tuple[FinishedRun, list[Result], bool, FinishedRun]:
    run = commands.start(*_LONGER, *_JOB)
    _wait_for_results(run)
    commands.ask("scancel", _job_of(run.folder))
    stopped = run.finish(200)
    trained = bool(stopped.summary["results"]["training"])
    before = list(load_run(stopped.folder).of_status("ok"))
    finished = commands.start("scale", "--resume", "--no-waterfall").finish(300)
    return stopped, before, trained, finished


@driven_by(_cancelled_and_resumed)
def test_a_cancelled_job_is_readable_and_resume_finishes_it(outcome: Any) -> None:
    stopped, before, trained, finished = outcome
    assert stopped.returncode == 4, stopped.stdout + stopped.stderr
    assert "launches are missing: --resume submits them" in stopped.stdout
    assert trained
    assert 0 < len(before) < 6
    _assert_complete(finished)
    after = {result.key: result for result in load_run(finished.folder).results}
    assert all(after[result.key].started_at == result.started_at for result in before)  # not measured again


def _interrupted(commands: Commands) -> tuple[FinishedRun, str, str]:
    run = commands.start(*_LONGER, *_JOB)
    _wait_for_results(run)
    job = _job_of(run.folder)
    run.send(signal.SIGINT)
    stopped = run.finish(200)
    queue = commands.ask("squeue", "-h", f"--jobs={job}")
    assert run.leftovers() == []
    return stopped, job, queue


@driven_by(_interrupted)
def test_ctrl_c_cancels_the_job_and_keeps_what_is_finished(outcome: Any) -> None:
    stopped, job, queue = outcome
    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    assert f"stopped by SIGINT; job {job} is cancelled; finished launches are kept" in stopped.stderr
    assert queue == ""
    assert stopped.summary["results"]["training"]


def _to_nowhere(commands: Commands) -> FinishedRun:
    return commands.start("train", "--launcher=slurm", "--partition=nowhere", "--device=cpu").finish(200)


@driven_by(_to_nowhere)
def test_a_job_that_slurm_refuses_shows_the_reason(outcome: Any) -> None:
    assert outcome.returncode == 3
    assert "sbatch failed: " in outcome.stderr and "Invalid partition" in outcome.stderr


def _without_gpus(commands: Commands) -> FinishedRun:
    return commands.start("train", *TINY, *_JOB, "--backend=nccl").finish(300)


@driven_by(_without_gpus)
def test_a_job_that_cannot_run_shows_the_reason(outcome: Any) -> None:
    assert outcome.returncode == 3, outcome.stdout + outcome.stderr
    job = _job_of(outcome.folder)
    why = "--backend nccl requires CUDA GPUs; use --backend gloo"
    assert f"job {job} ended (failed) and measured nothing: {why} (log: " in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
