"""What a command and each of its ranks find in their environment."""

from pathlib import Path
from typing import Any, cast

from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.local.command.environment import command_environment, rank_environments
from scalescope.launch.local.split_gpu import SplitGpu
from tests.builders.commands import command_trial


class _Split:
    """The variables of a split GPU without its daemon."""

    def environment_of(self, rank: int) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": "/pipe", "NCCL_HOSTID": f"scalescope-{rank}"}


_SPLIT = cast(SplitGpu, _Split())
_GPUS = cast("tuple[Gpu, ...]", (object(), object()))


def _trial(**settings: Any) -> Trial:
    return command_trial("torchrun train.py", world_size=2, device="cuda", **settings)


def _environment(trial: Trial, ranks: list[dict[str, str]]) -> dict[str, str]:
    return command_environment(trial, {"PATH": "/bin"}, Path("/d/job.json"), Path("/d/python"), ranks)


def test_parts_of_a_gpu_are_the_first_device_of_every_rank() -> None:
    ranks = rank_environments(_trial(split_gpu=2), _SPLIT, _GPUS)
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "0"]
    assert [rank["NCCL_HOSTID"] for rank in ranks] == ["scalescope-0", "scalescope-1"]


def test_the_command_has_what_all_ranks_of_a_split_gpu_share() -> None:
    trial = _trial(split_gpu=2)
    environment = _environment(trial, rank_environments(trial, _SPLIT, _GPUS))
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/pipe"
    assert not {"NCCL_HOSTID", "LOCAL_RANK"} & set(environment)


def test_ranks_that_share_gpus_have_host_ids_of_their_own() -> None:
    ranks = rank_environments(command_trial("x", world_size=3, oversubscribe=True), None, _GPUS)
    assert [rank["NCCL_HOSTID"] for rank in ranks] == ["scalescope-0", "scalescope-1", "scalescope-2"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0"]


def test_what_the_user_sets_wins_over_what_a_rank_gets() -> None:
    trial = _trial(split_gpu=2, env={"NCCL_HOSTID": "mine", "PYTHONPATH": "/theirs"})
    ranks = rank_environments(trial, _SPLIT, _GPUS)
    assert all("NCCL_HOSTID" not in rank for rank in ranks)
    environment = _environment(trial, ranks)
    assert (environment["NCCL_HOSTID"], environment["PYTHONPATH"]) == ("mine", "/d/python:/theirs")


def test_ranks_with_a_gpu_each_get_nothing_of_their_own() -> None:
    assert rank_environments(_trial(), None, _GPUS) == []
    assert rank_environments(_trial(split_gpu=2, keep_running=True), _SPLIT, _GPUS) == []
