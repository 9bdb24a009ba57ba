"""Other load over a whole run: what others used, how many launches it disturbed, and that in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.statistics import mean_of_known
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import Result
from scalescope.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoad:
    """Means over all launches of a run, those that were repeated included."""

    mean: OtherLoad
    launches: int  # with known other load
    disturbed: int  # of these

    @property
    def is_present(self) -> bool:
        return self.mean.is_present


def load_of(run: Run) -> RunLoad:
    """What others used while a run was measured."""
    finished = [
        result
        for result in (*run.of_status("ok"), *run.replaced)
        if _measures_time(result) and result.other_load != OtherLoad()
    ]
    return RunLoad(
        mean=mean_load([result.other_load for result in finished]),
        launches=len(finished),
        disturbed=sum(result.is_disturbed for result in finished),
    )


def _measures_time(result: Result) -> bool:
    return bool(result.trial.benchmark_card.measures_time)


def mean_load(loads: Sequence[OtherLoad]) -> OtherLoad:
    """The mean of each figure over the launches that know it; of GPU processes the most."""
    waits = [load.longest_wait for load in loads]
    return OtherLoad(
        cores=max((load.cores for load in loads if load.cores is not None), default=None),
        other_cores=mean_of_known(load.other_cores for load in loads),
        stolen_cores=mean_of_known(load.stolen_cores for load in loads),
        rank_waits=None if (wait := mean_of_known(waits)) is None else (wait,),
        pressure=mean_of_known(load.pressure for load in loads),
        load_average=mean_of_known(load.load_average for load in loads),
        gpu_processes=max(
            (load.gpu_processes for load in loads if load.gpu_processes is not None), default=None
        ),
        gpu_utilization=mean_of_known(load.gpu_utilization for load in loads),
        gpu_slowed=mean_of_known(load.gpu_slowed for load in loads),
        gpu_clock_share=min(
            (load.gpu_clock_share for load in loads if load.gpu_clock_share is not None), default=None
        ),
    )


def load_text(load: OtherLoad, *, now: bool = False) -> str:
    """What others used, in words; empty where that is little, or unknown."""
    used, took, were = ("use", "take", "are") if now else ("used", "took", "were")
    parts = []
    if load.uses_cores and load.other_cores is not None:
        parts.append(f"other processes {used} {load.other_cores:.1f} of {load.cores} cores")
    if load.is_stolen_from and load.stolen_cores is not None:
        parts.append(f"other virtual machines {took} {load.stolen_cores:.1f} of {load.cores} cores")
    if load.gpu_processes:
        several = "1 other process" if load.gpu_processes == 1 else f"{load.gpu_processes} other processes"
        parts.append(f"{several} {were if load.gpu_processes > 1 else ('is' if now else 'was')} on the GPUs")
    return " and ".join(parts)


def disturbance_text(load: OtherLoad) -> str:
    """Why a launch counts as disturbed, in words."""
    parts = [load_text(load)] if load.is_present else []
    wait = load.longest_wait
    if load.uses_cores and load.delays_ranks and wait is not None:
        parts.append(f"a rank waited {wait * 100:.0f} % of its time for a core")
    if load.gpu_slowed:
        parts.append(
            f"heat or its power supply slowed a GPU in {load.gpu_slowed * 100:.0f} % of the readings"
        )
    if load.gpu_clock_share is not None and load.gpu_clock_share < 1.0 and not parts:
        parts.append(f"the GPU's clock fell to {load.gpu_clock_share * 100:.0f} %")
    return ", ".join(parts)
