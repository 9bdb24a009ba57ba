"""Commands on the nodes of a job: which nodes there are, what they are together, and what is refused."""

import json
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.launch import allocation as module
from scalescope.launch.allocation import Allocation, AllocationLauncher, current_allocation
from scalescope.launch.slurm import queue
from tests.builders.commands import command_trial

_JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURMD_NODENAME": "n1",
    "SLURM_TASKS_PER_NODE": "4(x2),2",
    "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
}


def test_a_job_of_several_nodes_is_found_by_its_variables() -> None:
    allocation = current_allocation(_JOB)
    assert allocation == Allocation(
        job="77", nodes=("n1", "n2", "n3"), tasks_per_node=2, cores_per_node={"n1": 16, "n2": 16, "n3": 8}
    )
    allocation = current_allocation({**_JOB, "SLURMD_NODENAME": "n2"})
    assert allocation is not None
    assert allocation.nodes == ("n2", "n1", "n3")  # the node of this process comes first


@pytest.mark.parametrize("changed", [{"SLURM_JOB_ID": ""}, {"SLURM_JOB_NODELIST": "n1"}])
def test_one_node_is_a_machine_like_any(changed: dict[str, str]) -> None:
    assert current_allocation({**_JOB, **changed}) is None
    assert current_allocation({}) is None


def test_a_shell_outside_the_nodes_of_its_job_is_refused() -> None:
    with pytest.raises(CannotRun, match="job 77 has 3 nodes, and this is not one of them"):
        current_allocation({**_JOB, "SLURMD_NODENAME": "login"})


class _MadeUpSteps:
    """Answers squeue and scancel for the steps of one job."""

    def __init__(self) -> None:
        self.running = ["77.batch", "77.extern", "77.0"]
        self.cancelled: list[str] = []

    def run(self, *command: str) -> str:
        if command[0] == "scancel":
            self.cancelled.append(command[1])
            self.running.remove(command[1])
        return "\n".join(self.running)


def test_steps_that_a_launch_left_are_ended_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = _MadeUpSteps()
    monkeypatch.setattr(queue, "_run", steps.run)
    allocation = current_allocation(_JOB)
    assert allocation is not None
    with pytest.raises(KeyError), allocation.without_new_steps():
        steps.running.append("77.1")
        raise KeyError
    assert steps.cancelled == ["77.1"]
    assert steps.running == ["77.batch", "77.extern", "77.0"]


def test_a_launch_goes_on_where_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str) -> str:
        raise CannotRun("squeue was not found")

    monkeypatch.setattr(queue, "_run", refuse)
    allocation = current_allocation(_JOB)
    assert allocation is not None
    with allocation.without_new_steps():
        pass


_ALLOCATION = Allocation(job="77", nodes=("n1", "n2"), tasks_per_node=2, cores_per_node={"n1": 4, "n2": 4})
_PROBED: dict[str, Any] = {
    "host": "some.host",
    "system": "Linux",
    "architecture": "x86_64",
    "cpu_model": "made up",
    "cores": 64,
    "memory_bytes": 1 << 30,
    "python_version": "3.12.0",
    "torch_version": "2.9.0",
    "cuda_version": None,
    "nccl_version": None,
    "driver_version": None,
    "backends": ["gloo"],
    "gpus": [],
    "gpu_problem": None,
}


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> AllocationLauncher:
    def probe(*starter: str) -> dict[str, Any]:
        bound = {"cores": 1} if starter else {}  # a step of one task may be bound to one core
        return json.loads(json.dumps(_PROBED | bound))

    monkeypatch.setattr(module, "probe_in_new_process", probe)
    return AllocationLauncher(_ALLOCATION, telemetry=False)


def test_all_nodes_are_one_machine_with_the_cores_that_each_was_granted(launcher: AllocationLauncher) -> None:
    assert [(name, node.host, node.cores) for name, node in launcher.nodes().items()] == [
        ("n1", "n1", 4),
        ("n2", "n2", 4),
    ]
    machine = launcher.machine()
    assert (machine.cores, machine.ranks_per_node, machine.ranks_on_a_host(4)) == (4, 2, 2)
    assert launcher.outlook(["cpu"]) is None


def test_ranks_by_node_are_the_tasks_of_the_job(launcher: AllocationLauncher) -> None:
    assert launcher.command_nodes().values(4) == {"nodes": 2, "ranks_per_node": 2, "first_node": "n1"}
    launcher.check(command_trial("srun torchrun --nnodes={nodes}", world_size=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workload": "mlp"}, "start scalescope by srun to measure without a command"),
        ({"split_gpu": 2}, "cannot be used in a job of several nodes"),
        ({"link": "1gbit"}, "cannot be used in a job of several nodes"),
        ({"oversubscribe": True}, "cannot be used in a job of several nodes"),
        ({"pin_cores": "yes"}, "--pin-cores: srun binds ranks"),
        ({"world_size": 3}, "3 ranks do not fill nodes of 2 ranks"),
    ],
)
def test_what_srun_decides_is_refused(
    launcher: AllocationLauncher, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        launcher.check(command_trial("srun torchrun --nnodes={nodes}", **settings))
