"""Training commands as jobs: on one node by torchrun, on two by the command's own srun, and faults there."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.real_runs import FinishedRun
from tests.slurm.cluster import NODES
from tests.slurm.conftest import Commands, driven_by
from tests.speed import limit, patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]

_SCRIPTS = Path(__file__).parents[1] / "commands" / "scripts"
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_SHORT = ("--device=cpu", "--window=0.3s", "--no-repeat-disturbed", "--launcher=slurm")
_BY_NODE = ("srun", "--nodes={nodes}", "--ntasks={nodes}", "--cpus-per-task={ranks_per_node}", *_TORCHRUN)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _tasks(*fault: str) -> tuple[str, ...]:
    """One task of srun per rank."""
    script = (sys.executable, f"{_SCRIPTS}/slurm_tasks.py", "{first_node}", _free_port(), *fault)
    return ("srun", "--ntasks={world_size}", *script)


def _finished(commands: Commands, *words: str) -> FinishedRun:
    run = commands.start(*words)
    finished = run.finish(400)
    assert run.leftovers() == []
    return finished


def _statuses(finished: FinishedRun) -> set[str]:
    return {result["status"] for result in finished.results}


def _on_one_node(commands: Commands) -> FinishedRun:
    flags = ("--world-size=1,2", "--repeats=1", "--tasks-per-node=2", "--no-waterfall")
    command = (*_TORCHRUN, "--nproc-per-node={world_size}", f"{_SCRIPTS}/plain_ddp.py")
    return _finished(commands, "scale", *_SHORT, *flags, "--", *command)


@driven_by(_on_one_node)
def test_a_command_on_one_node_is_launched_anew_by_every_part_of_the_job(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert _statuses(outcome) == {"ok"}
    launches = {(result["settings"]["world_size"], result["launch"]) for result in outcome.results}
    assert launches == {(1, 0), (2, 0)}
    assert "weak scaling" in outcome.stdout


def _on_two_nodes(commands: Commands) -> FinishedRun:
    flags = ("--world-size=1,2", "--repeats=1", "--nodes=2")
    return _finished(commands, "scale", *_SHORT, *flags, "--", *_tasks())


@driven_by(_on_two_nodes)
def test_tasks_of_srun_on_two_nodes_are_measured_and_explained(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert _statuses(outcome) == {"ok"}
    benchmarks = {result["settings"]["benchmark"] for result in outcome.results}
    assert benchmarks == {"train", "arrivals"}
    assert any(result["settings"].get("without_communication") for result in outcome.results)
    two = next(row for row in outcome.summary["results"]["scaling"] if row["world_size"] == 2)
    assert two["waterfall"]
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(NODES)
    assert environment["machine"]["ranks_per_node"] == 1


@driven_by(_on_two_nodes)
def test_the_files_of_a_launch_on_two_nodes_lie_in_the_run_folder_while_it_lasts(outcome: Any) -> None:
    assert not list(outcome.folder.glob("scalescope-launch-*"))
    job = next((outcome.folder / "slurm").glob("slurm-*.out")).read_text()
    assert "Collectives are not measured: in a job of several nodes only the command starts ranks." in job


def _torchrun_on_two_nodes(commands: Commands) -> FinishedRun:
    launcher = ("--nnodes={nodes}", "--nproc-per-node={ranks_per_node}", "--rdzv-backend=c10d")
    endpoint = f"--rdzv-endpoint={{first_node}}:{_free_port()}"
    flags = ("--world-size=4", "--nodes=2", "--tasks-per-node=2", "--no-breakdown")
    command = (*_BY_NODE, *launcher, endpoint, f"{_SCRIPTS}/plain_ddp.py")
    return _finished(commands, "train", *_SHORT, *flags, "--", *command)


@driven_by(_torchrun_on_two_nodes)
def test_one_torchrun_per_node_gets_the_number_of_nodes_and_of_ranks_on_each(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert _statuses(outcome) == {"ok"}
    assert {len(result["ranks"]) for result in outcome.results} == {4}


def _crashing(commands: Commands) -> FinishedRun:
    flags = ("--world-size=2", "--nodes=2", "--no-breakdown")
    return _finished(commands, "train", *_SHORT, *flags, "--", *_tasks("crash"))


@driven_by(_crashing)
def test_a_crash_on_another_node_has_its_rank_and_its_message(outcome: Any) -> None:
    assert outcome.returncode == 4, outcome.stdout + outcome.stderr
    reasons = [result["reason"] for result in outcome.results]
    assert all(reason.startswith("rank 1 failed") for reason in reasons)
    assert all("ValueError: the data is gone" in reason for reason in reasons)
    assert "Its error" not in outcome.stdout  # what a launch failed of is shown with it


def _hanging(commands: Commands) -> FinishedRun:
    flags = ("--world-size=2", "--nodes=2", "--no-breakdown", f"--warmup-timeout={limit(3):g}s")
    return _finished(commands, "train", *_SHORT, *flags, "--", *_tasks("hang"))


@driven_by(_hanging)
def test_a_rank_that_hangs_on_another_node_is_ended_there_too(outcome: Any) -> None:
    assert outcome.returncode == 5, outcome.stdout + outcome.stderr
    assert _statuses(outcome) == {"hang"}
    assert all("all ranks hang" in result["reason"] for result in outcome.results)


def _without_environment(commands: Commands) -> FinishedRun:
    start, number, *script = _tasks()
    inside = ("/usr/bin/env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", script[0])
    attach = ("-m", "scalescope.attach", "--job", "{attach}", "--")
    command = (start, "--export=NONE", number, *inside, *attach, *script[1:])
    return _finished(
        commands, "train", *_SHORT, "--world-size=2", "--nodes=2", "--no-breakdown", "--", *command
    )


@driven_by(_without_environment)
def test_ranks_without_our_environment_are_measured_by_the_file_of_their_job(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert _statuses(outcome) == {"ok"}
