"""What a training command and each of its ranks find in their environment, and the cores of each rank."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.local.emulation import SplitGpu
from scalescope.launch.local.logs import without_perf_maps
from scalescope.launch.local.processes import cpus_for
from scalescope.launch.probing import LOOPBACK
from scalescope.results.ranks import JOB_VARIABLE
from scalescope.secret_variables import with_values

# What trackers read to stay offline.
_OFFLINE = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
}


def command_environment(
    trial: Trial,
    inherited: Mapping[str, str],
    job_file: Path,
    hook: Path,
    ranks: Sequence[dict[str, str]],
    *,
    on_one_host: bool = True,
) -> dict[str, str]:
    """All variables of the command; of those of its ranks what all have in common.

    A command that is to run on unchanged gets nothing but our hook and what the user asked for.
    """
    environment = dict(inherited)
    if not trial.keeps_running:
        loopback = LOOPBACK if on_one_host else {}
        environment |= {name: value for name, value in loopback.items() if name not in inherited}
        environment |= without_perf_maps(inherited)
        environment["OMP_NUM_THREADS"] = str(trial.threads_per_rank)
        environment |= _common(ranks)
    if trial.has_private_view:
        environment |= _OFFLINE
    environment |= with_values(trial.env)
    path = (str(hook), environment.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(folder for folder in path if folder)
    environment[JOB_VARIABLE] = str(job_file)
    return environment


def rank_environments(trial: Trial, split: SplitGpu | None, gpus: Sequence[Gpu]) -> list[dict[str, str]]:
    """What differs by rank, set before the script reads it; empty where nothing does."""
    if trial.keeps_running or not (split or trial.oversubscribe):
        return []
    environments = [_rank_environment(rank, split, gpus) for rank in range(trial.world_size)]
    return [
        {name: value for name, value in environment.items() if name not in trial.env}
        for environment in environments
    ]


def _rank_environment(rank: int, split: SplitGpu | None, gpus: Sequence[Gpu]) -> dict[str, str]:
    if split is not None:
        return split.environment_of(rank) | {"LOCAL_RANK": "0"}
    # NCCL refuses two ranks of one host on one GPU; given different host ids, it uses sockets.
    shared = {"NCCL_HOSTID": f"scalescope-{rank}", "NCCL_IB_DISABLE": "1"}
    return shared | ({"LOCAL_RANK": str(rank % len(gpus))} if gpus else {})


def _common(ranks: Sequence[dict[str, str]]) -> dict[str, str]:
    if not ranks:
        return {}
    common = set.intersection(*(set(environment.items()) for environment in ranks))
    return {name: value for name, value in common if name != "LOCAL_RANK"}


def rank_cpus(trial: Trial, gpus: Sequence[Gpu]) -> list[list[int]]:
    """The cores that each rank is pinned to; empty where ranks are not pinned."""
    if trial.keeps_running:
        return []
    cpus = [cpus_for(trial, rank, gpus) for rank in range(trial.world_size)]
    return cpus if all(cpus) else []
