"""The nodes of a job, from its variables, and the steps that are ended with a launch."""

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.allocation.allocation import Allocation, current_allocation
from scalescope.launch.slurm import queue

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


def test_the_node_of_this_process_comes_first() -> None:
    allocation = current_allocation({**_JOB, "SLURMD_NODENAME": "n2"})
    assert allocation is not None
    assert allocation.nodes == ("n2", "n1", "n3")


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
