"""The cores that each rank of this machine is pinned to."""

from collections.abc import Callable, Sequence

from scalescope.cores import cores_near, own_cores, share_near, share_of
from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial

Cores = frozenset[int] | None


def cpus_for(
    trial: Trial, rank: int, gpus: Sequence[Gpu] = (), near: Callable[[str | None], Cores] = cores_near
) -> list[int]:
    """The cores a rank is pinned to; none where there are not enough for all, or it is not to be pinned.

    A GPU rank's helpers (loader, watchdogs) run on the same cores, so it gets its whole share of those next
    to its GPU, or of the host's where the system does not say which those are.
    """
    asked = trial.pin_cores
    if asked == "no" or (asked == "auto" and trial.device != "cpu"):
        return []
    cores, ranks = own_cores(), trial.world_size
    if trial.device == "cpu":
        return share_of(cores, trial.threads_per_rank, ranks, rank)
    buses = [_gpu_of(trial, other, gpus) for other in range(ranks)]
    return share_near(cores, [near(bus) for bus in buses], rank) or share_of(
        cores, len(cores) // ranks, ranks, rank
    )


def _gpu_of(trial: Trial, rank: int, gpus: Sequence[Gpu]) -> str | None:
    """The PCI bus of the GPU that a rank uses: the parts of a split GPU are all of the first."""
    if not gpus:
        return None
    return gpus[0 if trial.split_gpu else rank % len(gpus)].pci_bus
