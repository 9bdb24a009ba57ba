"""The timeline of ZeRO-1: DDP's exchange of gradients, then each rank updates and sends its parameters."""

import heapq

from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.analysis.prediction.timelines.data_parallel import add_averaged_gradients
from scalescope.analysis.prediction.timelines.exchanges import SetupCollectives, scheduled
from scalescope.analysis.prediction.timelines.lanes import Lanes, expected_maximum, slowdown


def simulate_zero1(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> StepTimeline:
    """One step of DDP with PyTorch's ZeroRedundancyOptimizer, which broadcasts parameter by parameter."""
    line = Lanes()
    add_averaged_gradients(line, profile, times, setup, fitted)
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    share = largest_share(sizes, setup.world_size)
    line.compute("optimizer", profile.optimizer_s * share * slowdown(fitted, setup.world_size))
    collectives = SetupCollectives(times, setup)
    updated = [collectives.exchange("broadcast", size, line.now_s) for size in sizes]
    line.exchange(scheduled(updated, setup.backend))
    line.compute("rest", profile.rest_s)
    return line.finished(line.computed_s * profile.spread * expected_maximum(setup.world_size))


def largest_share(sizes: list[int], ranks: int) -> float:
    """The part of all parameters that the busiest rank updates: the largest go to the emptiest rank first."""
    if not sum(sizes):
        return 1.0 / ranks
    held = [0] * ranks
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(held, held[0] + size)
    return max(held) / sum(sizes)
