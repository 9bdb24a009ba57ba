"""Runs as jobs: submitted, followed, collected; cancelled and continued; sent back to the queue."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.report.results_json import results_json
from scalescope.results.run import load_run
from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, StartedRun, read_results
from tests.slurm.cluster import NODES

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

_JOB = ("--launcher=slurm", "--nodes=2")
_SCALE = ("scale", *TINY, "--world-size=1,2", "--no-waterfall", "--repeats=2")
_LONGER = tuple(flag.replace("epoch=8", "epoch=400") for flag in _SCALE)  # enough to be stopped on the way


def _slurm(cluster: dict[str, str], *command: str) -> str:
    environment = {**os.environ, **cluster}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30).stdout


def _job_of(folder: Path) -> str:
    return str(json.loads((folder / "slurm/job.json").read_text())["job_id"])


def _wait_for_results(run: StartedRun) -> None:
    run.wait_until(lambda: len(read_results(run.folder)) > 0, "result of the job", within_s=120)


def _assert_complete(finished: FinishedRun) -> None:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    run = load_run(finished.folder)  # every line is held against the schema; what does not fit is a warning
    assert run.warnings == ()
    experiment = read_experiment_file(finished.folder / "experiment.yaml")
    asked = build_experiment("scale", "train", experiment, {}, {})
    assert finished.summary == json.loads(json.dumps(results_json(run, asked)))  # rebuilt from the trials
    assert {result.status for result in run.results} == {"ok"}
    launches = {(result.settings["world_size"], result.launch) for result in run.results}
    assert launches == {(world, launch) for world in (1, 2) for launch in (0, 1)}
    rows = finished.summary["results"]["scaling"]
    assert [row["world_size"] for row in rows] == [1, 2]
    assert rows[1]["ci95_efficiency"] is not None  # launches are independent, so there is an interval


def test_a_job_on_two_nodes_is_submitted_followed_and_collected(
    start: Start, cluster: dict[str, str]
) -> None:
    run = start(*_SCALE, *_JOB, **cluster)
    finished = run.finish(300)
    _assert_complete(finished)
    job = _job_of(finished.folder)
    assert f"Job {job}: 2 ranks on 2 nodes, 2 launches." in finished.stdout
    assert f"Job {job} is running." in finished.stdout
    assert "weak scaling" in finished.stdout
    assert "Attached ranks make one launch" not in finished.stdout
    both = [one for one in finished.results if one["settings"]["world_size"] == 2]
    assert {tuple(rank["host"] for rank in one["ranks"]) for one in both} == {NODES}
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)
    assert sorted(one["order"] for one in finished.results) == list(range(len(finished.results)))
    assert run.leftovers(within_s=5.0) == []


def test_a_job_of_one_task_starts_ranks_of_its_own(start: Start, cluster: dict[str, str]) -> None:
    job = ("--launcher=slurm", "--cpus-per-task=2", "--no-waterfall", "--repeats=1")
    finished = start("scale", *TINY, *job, **cluster).finish(120)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert {one["settings"]["world_size"] for one in finished.results} == {1, 2}
    assert "1 rank on 1 node, 1 launch." in finished.stdout


def test_a_cancelled_job_is_readable_and_resume_finishes_it(start: Start, cluster: dict[str, str]) -> None:
    run = start(*_LONGER, *_JOB, **cluster)
    _wait_for_results(run)
    _slurm(cluster, "scancel", _job_of(run.folder))
    stopped = run.finish(120)
    assert stopped.returncode == 4, stopped.stdout + stopped.stderr
    assert "launches are missing: --resume submits them" in stopped.stdout
    assert stopped.summary["results"]["training"]
    before = load_run(stopped.folder).of_status("ok")
    assert 0 < len(before) < 6

    finished = start("scale", "--resume", "--no-waterfall", **cluster).finish(300)
    _assert_complete(finished)
    after = {result.key: result for result in load_run(finished.folder).results}
    assert all(after[result.key].started_at == result.started_at for result in before)  # not measured again


def test_ctrl_c_cancels_the_job_and_keeps_what_is_finished(start: Start, cluster: dict[str, str]) -> None:
    run = start(*_LONGER, *_JOB, **cluster)
    _wait_for_results(run)
    job = _job_of(run.folder)
    run.send(signal.SIGINT)
    stopped = run.finish(120)
    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    assert f"stopped by SIGINT; job {job} is cancelled; finished launches are kept" in stopped.stderr
    assert _slurm(cluster, "squeue", "-h", f"--jobs={job}") == ""
    assert stopped.summary["results"]["training"]
    assert run.leftovers(within_s=5.0) == []


def test_a_lost_connection_leaves_the_job_to_be_followed_through_the_queue_again(
    start: Start, cluster: dict[str, str]
) -> None:
    """One job for both: it is left alone while it runs, followed again, preempted, and finishes."""
    run = start(*_LONGER, *_JOB, **cluster)
    run.wait_until(lambda: "is running" in run.stdout, "running job", within_s=60)
    job = _job_of(run.folder)
    run.send(signal.SIGHUP)
    stopped = run.finish(60)
    assert stopped.returncode == 129
    assert f"job {job} goes on; --resume" in stopped.stderr

    followed = start(*_LONGER, *_JOB, "--resume", **cluster)
    followed.wait_until(lambda: f"Job {job} is running." in followed.stdout, "job to follow", within_s=60)
    _wait_for_results(followed)
    _slurm(cluster, "scancel", "--signal=USR1", "--batch", job)
    finished = followed.finish(300)
    _assert_complete(finished)
    assert _job_of(finished.folder) == job
    assert (
        "back to the queue; what is finished is kept"
        in (finished.folder / f"slurm/slurm-{job}.out").read_text()
    )


def test_a_job_that_cannot_run_says_why(start: Start, cluster: dict[str, str]) -> None:
    refused = start("train", "--launcher=slurm", "--partition=nowhere", "--device=cpu", **cluster).finish(60)
    assert refused.returncode == 3
    assert "sbatch failed: " in refused.stderr and "Invalid partition" in refused.stderr
    failing = start("train", *TINY, *_JOB, "--backend=nccl", folder="other", **cluster).finish(120)
    assert failing.returncode == 3, failing.stdout + failing.stderr
    job = _job_of(failing.folder)
    why = "--backend nccl needs CUDA GPUs; use --backend gloo"
    assert f"job {job} ended (failed) and measured nothing: {why} (log: " in failing.stderr
    assert len(failing.stderr.strip().splitlines()) == 1
