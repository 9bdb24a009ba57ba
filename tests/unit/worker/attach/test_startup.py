"""Which rank a process is before its script runs, and what of its job holds on another node."""

import pytest

from scalescope.results.ranks.attach_job import AttachJob
from scalescope.worker.attach import startup

_VARIABLES = ("RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURMD_NODENAME")
_BATCH = {"SLURM_PROCID": "0"}  # what a job's script has
_TASK = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"RANK": "1"}, 1),
        (_TASK, 3),
        (_TASK | {"RANK": "1"}, 1),
        (_BATCH, None),
        (_BATCH | {"RANK": "1"}, 1),
        (_TASK | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"RANK": "one"}, None),
    ],
)
def test_ranks_are_those_of_a_launcher_and_not_of_a_job_script(
    variables: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert startup.rank_from_environment() == rank


def _job(node: str) -> AttachJob:
    return AttachJob(
        settings={},
        launch=0,
        world_size=2,
        directory="/run/launch",
        rank_files=["/run/0", "/run/1"],
        heartbeat_file="/dev/shm/launch/beats",
        folder="/run",
        parent=4711,
        package_parent="/lib",
        node=node,
    )


def test_on_another_node_neither_the_launcher_nor_its_memory_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    job = startup._on_this_node(_job("n1"))
    assert job.parent == 0
    assert job.heartbeat_file != _job("n1").heartbeat_file
    assert job.rank_files == _job("n1").rank_files


@pytest.mark.parametrize("node", ["", "n2"])
def test_on_the_node_of_the_launcher_the_job_is_as_it_was_written(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert startup._on_this_node(_job(node)) == _job(node)
