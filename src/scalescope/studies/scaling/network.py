"""What is measured of the network in addition to training, to separate slow links from latency."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from scalescope.catalog.benchmarks.comm import LEAST_PAIR_ITERATIONS, NCCL_LOG
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import PerDevice, for_device, settings_of
from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from scalescope.studies.plan import Plan

_SHORT_COMM = {
    "collective": "all_reduce",
    "min_bytes": 1 << 10,
    # On the CPU the largest sizes take seconds to fill and check, and buckets are smaller.
    "max_bytes": PerDevice(cpu=1 << 26, cuda=1 << 28),
    "step_factor": 4,
    "time_per_size": 0.05,
    "longest_exchange": 0.05,  # beyond that only bytes count, and twice as many take twice as long
}
_MOST_RANKS_OF_A_NODE = 8  # for pairs: those of many take long


def network_of(plan: Plan, *, with_nccl_log: bool) -> tuple[Trial, ...]:
    """Short launches: the all-reduce on every number of ranks, every pair of the most, and NCCL's log.

    `with_nccl_log` is for launchers that can set a rank's variables.
    """
    curves = exchanges(plan)
    return (*curves, *pairs(plan), *(nccl_logs(curves[-1:]) if with_nccl_log else ()))


def exchanges(plan: Plan) -> tuple[Trial, ...]:
    """A short all-reduce on every number of ranks, placed as the training ranks are."""
    worlds = sorted({trial.world_size for trial in plan.trials if trial.world_size > 1})
    if not worlds:
        return ()
    return _expanded(plan, world_size=tuple(worlds), **{n: (v,) for n, v in _SHORT_COMM.items()})


def pairs(plan: Plan) -> tuple[Trial, ...]:
    """Each two ranks of a node and each two nodes by themselves, to find one link that is slower."""
    most = max(trial.world_size for trial in plan.trials)
    if most < 3 or plan.machine.ranks_on_a_host(most) > _MOST_RANKS_OF_A_NODE:  # two have but one pair
        return ()
    few = {"pairs": (True,), "iters": (LEAST_PAIR_ITERATIONS,)}
    return _expanded(plan, world_size=(most,), **{n: (v,) for n, v in _SHORT_COMM.items()}, **few)


def nccl_logs(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """An untimed launch for every world size on NCCL, in which it logs what it chooses."""
    variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,TUNING"}
    logged = (
        trial.replace(purpose=NCCL_LOG, env={**trial.env, **variables}, dtype="float32")
        for trial in trials
        if trial.backend == "nccl"
    )
    return tuple({trial.trial_id: trial for trial in logged}.values())


def _expanded(plan: Plan, **settings: tuple[Any, ...]) -> tuple[Trial, ...]:
    """Collectives between ranks that are placed as the training ranks are."""
    asked, device = plan.experiment, plan.trials[0].device
    chosen = {name: tuple(for_device(value, device) for value in values) for name, values in settings.items()}
    shared = {setting.name for setting in settings_of(Placement)} - {"world_size", "env"}
    placed = {n: v for n, v in asked.settings.items() if n in shared}
    experiment = dataclasses.replace(asked, benchmark="comm", settings={**placed, **chosen})
    return expand(experiment, plan.machine).trials
