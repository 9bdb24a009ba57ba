"""What communication, a slow rank and random skew add to a step: one definition, with or without a waterfall.

Ranks that send nothing run each at their own speed. In normal training all wait for the last to arrive:

    step = typical rank + delay of a persistently slow rank + random skew + communication

The delay comes from ranks without communication. What ranks wait for each other comes from recorded normal
steps: the mean over ranks of a step is compute + waiting + communication, so

    communication                        = step − mean rank without communication − waiting
    random skew + delay of the slow rank = waiting + mean rank − typical rank

A delay that queued transfers hide costs nothing: where it is more than all of that, that is what counts.
Without a record, random skew cannot be separated from communication, which then includes it.
"""

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalescope.analysis.arrivals import RecordedLaunch
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.culprit import Straggler, delays_s, find_culprit, typical_steps_s
from scalescope.analysis.scaling.waterfall import CommunicationSplit, typical_step_s
from scalescope.analysis.statistics import Estimate, Sample, mean_with_interval, moved, negative, sum_of_means


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationCost:
    """Seconds per step; None is unknown."""

    typical_s: Sample  # a typical rank without communication, in each launch
    straggler: Straggler | None
    delay_s: Estimate | None  # of the slow rank
    random_skew_s: Estimate | None
    communication_s: Estimate
    split: CommunicationSplit | None
    hook_s: float | None  # of the hook that replaces communication: normal ranks do not have it


def communication_cost(full: Configuration, without_comm: Configuration) -> CommunicationCost:
    """What is lost between ranks, from normal training and the same ranks without communication."""
    silent = without_comm.mean_steps_s  # only its rounds matter here
    rank_means = without_comm.rank_means_s
    typical = Sample(tuple(typical_steps_s(rank_means)), silent.rounds)
    lost_s = typical_step_s(full.mean_steps_s) - typical_step_s(typical)  # what the terms add up to
    delays = delays_s(rank_means)
    waits = _of_recorded(full, lambda launch: launch.waiting_s)
    delay = None if delays is None else mean_with_interval(delays)
    delay_s = 0.0 if delay is None else delay.value
    late_s = Sample(tuple(delays or [0.0] * len(typical)), silent.rounds)
    if not waits:
        rest = sum_of_means(full.mean_steps_s, negative(_sum(typical, late_s)))
        skew, communication = None, moved(rest, lost_s - delay_s)
    else:
        means = Sample(tuple(statistics.fmean(of_ranks) for of_ranks in rank_means), silent.rounds)
        unequal = _sum(means, negative(typical))
        to_peers = sum_of_means(waits, unequal)
        skew = to_peers if delays is None else sum_of_means(waits, _sum(unequal, negative(late_s)))
        if skew.high is not None and skew.high < 0.0:
            delay, skew = to_peers, Estimate(0.0, 0.0, 0.0)
        rest = sum_of_means(full.mean_steps_s, negative(means), negative(waits))
        communication = moved(rest, lost_s - to_peers.value)
    hooks = [launch.hook_s for launch in without_comm.launches if launch.hook_s is not None]
    return CommunicationCost(
        typical_s=typical,
        straggler=find_culprit(rank_means),
        delay_s=delay,
        random_skew_s=skew,
        communication_s=communication,
        split=_split(full, communication),
        hook_s=statistics.fmean(hooks) if hooks else None,
    )


def _sum(left: Sequence[float], right: Sequence[float]) -> Sample:
    """Launch by launch, of two figures of the same launches."""
    assert isinstance(left, Sample)
    return Sample(tuple(map(operator.add, left, right)), left.rounds)


def _of_recorded(full: Configuration, part: Callable[[RecordedLaunch], float | None]) -> Sample:
    """A figure of the recorded launches that have it."""
    known = [(value, launch.round) for launch in full.recorded if (value := part(launch)) is not None]
    return Sample(tuple(value for value, _ in known), tuple(round_ for _, round_ in known))


def _split(full: Configuration, communication: Estimate) -> CommunicationSplit | None:
    """Exposed communication by the trace; what communication costs beyond it is compute that it slowed."""
    exposed = _of_recorded(full, lambda launch: launch.transfer_s)
    if not exposed:
        return None
    exposed_s = mean_with_interval(exposed)
    return CommunicationSplit(exposed_s=exposed_s, slowed_compute_s=difference(communication, exposed_s))


def difference(left: Estimate, right: Estimate) -> Estimate:
    """The difference of two independent estimates; their intervals add in squares."""
    value = left.value - right.value
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return Estimate(value)
    half = ((left.high - left.low) ** 2 + (right.high - right.low) ** 2) ** 0.5 / 2.0
    return Estimate(value, value - half, value + half)
