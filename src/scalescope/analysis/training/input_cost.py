"""What input adds to a step: the difference to the same job with preloaded batches, as far as input's."""

from collections.abc import Iterable

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate, difference_of_means, moved
from scalescope.analysis.training.activity import RankActivity

_BEYOND = 1.1  # times the host's time in input


def input_cost(
    full: Configuration,
    preloaded: Configuration | None,
    activities: Iterable[RankActivity],
    *,
    has_processes: bool,
) -> Estimate | None:
    """Seconds per step; None where that was not measured.

    Preloaded batches are always the same few, so they also take away what varies with batches: lengths,
    shapes that are compiled anew. Input cannot cost more than the host spends on it, unless the processes
    that prepare batches compete with it for cores.
    """
    if preloaded is None or preloaded is full:
        return None
    difference = difference_of_means(full.mean_steps_s, preloaded.mean_steps_s)
    host_s = [activity.host_s["input"] for activity in activities if "input" in activity.host_s]
    competes = has_processes and not full.trial.on_gpu
    if not host_s or competes or difference.value <= _BEYOND * max(host_s):
        return difference
    return moved(difference, max(host_s))
