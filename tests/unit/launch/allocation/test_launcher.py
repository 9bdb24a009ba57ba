"""The launcher of commands on several nodes: what the nodes are together, and what it refuses."""

import json
from typing import Any

import pytest

from scalescope.errors import BadInput
from scalescope.launch.allocation import launcher as module
from scalescope.launch.allocation.allocation import Allocation
from scalescope.launch.allocation.launcher import AllocationLauncher
from tests.builders.commands import command_trial

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
        ({"world_size": 3}, "3 ranks do not fill nodes of 2"),
    ],
)
def test_what_srun_decides_is_refused(
    launcher: AllocationLauncher, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        launcher.check(command_trial("srun torchrun --nnodes={nodes}", **settings))
