"""The waterfall by ablation: each term is the difference between two measurements that differ in one thing.

plain on one rank → inside the wrapper → a typical one of N ranks that send nothing → a persistently slow rank
→ random skew → full training; strong scaling has the smaller batch before all that, and a loader's input
comes last. The differences of step times telescope, so terms and delivered speed add up to N.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.communication import CommunicationCost, communication_cost, difference
from scalescope.analysis.scaling.waterfall import (
    COMMUNICATION,
    CONTENTION,
    INPUT,
    RANDOM_SKEW,
    SMALLER_BATCH,
    STRAGGLERS,
    WRAPPER,
    Part,
    Waterfall,
    built_waterfall,
    ideal_step_s,
    typical_step_s,
)
from scalescope.analysis.statistics import Estimate, difference_of_means, moved
from scalescope.experiment.ablations import (
    at_per_rank_batch,
    has_loader,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)

NOT_SILENCED = "the same ranks without communication were not measured"
_CANNOT_BE_SILENCED = "communication cannot be switched off for this strategy with these settings"
_NOT_WRAPPED = "one rank in the wrapper was not measured"


def waterfall_by_ablation(
    full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
) -> Waterfall:
    """Every term that was measured; the others are unknown, with the reason."""
    chain = _Chain(full, plain, by_trial)
    return waterfall_of_parts(full, plain, chain.parts(), chain.alone_s, chain.cost)


def waterfall_of_parts(
    full: Configuration,
    plain: Configuration,
    parts: Sequence[Part],
    alone_s: Sequence[float],
    cost: CommunicationCost | None,
) -> Waterfall:
    """The parts as a waterfall, with what is known of communication beside them."""
    waterfall = built_waterfall(
        full, plain, parts, simple_comm_s=difference_between(full.mean_steps_s, alone_s), source="ablation"
    )
    if cost is None:
        return waterfall
    return dataclasses.replace(waterfall, straggler=cost.straggler, split=cost.split, hook_s=cost.hook_s)


class _Chain:
    """The configurations of one waterfall, each with one thing more than the one before."""

    def __init__(
        self, full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
    ) -> None:
        self._full = full
        self._plain = plain
        trial = full.trial
        share = at_per_rank_batch(trial)
        self._share = by_trial.get(with_preloaded_input(single_rank_baseline(share)).trial_id)
        self._wrapped = by_trial.get(with_preloaded_input(share.on_one_rank()).trial_id)
        without_comm = without_communication(with_preloaded_input(trial))
        silent = None if without_comm is None else by_trial.get(without_comm.trial_id)
        self._fed = by_trial.get(with_preloaded_input(trial).trial_id)
        self._share_as_fed = by_trial.get(single_rank_baseline(share).trial_id)
        self.cost: CommunicationCost | None = None
        if silent is not None and self._fed is not None:
            self.cost = communication_cost(self._fed, silent)

    @property
    def alone_s(self) -> Sequence[float]:
        """Steps of one rank with as many samples as one of N has."""
        return (self._share_as_fed or self._plain).mean_steps_s

    def parts(self) -> list[Part]:
        """Every term that this job has."""
        share, wrapped = _steps(self._share), _steps(self._wrapped)
        parts = []
        if self._full.trial.mode == "strong":
            missing = "one rank was not measured with its share of the batch"
            parts.append(Part(name=SMALLER_BATCH, time_s=self._smaller_batch(), reason=missing))
        parts.append(Part(name=WRAPPER, time_s=_difference(wrapped, share), reason=_NOT_WRAPPED))
        parts += self._between_ranks(wrapped)
        if has_loader(self._full.trial):
            missing = "steps with preloaded samples were not measured"
            parts.append(Part(name=INPUT, time_s=self._input(), reason=missing))
        return parts

    def _between_ranks(self, wrapped: Sequence[float] | None) -> list[Part]:
        """What several ranks lose to each other. A slow rank is separated by several launches, random skew by
        a record of who waits for whom."""
        cost = self.cost
        if cost is None:
            has_ablation = without_communication(self._full.trial) is not None
            reason = NOT_SILENCED if has_ablation else _CANNOT_BE_SILENCED
            return [
                Part(name=name, time_s=None, reason=reason)
                for name in (CONTENTION, STRAGGLERS, COMMUNICATION)
            ]
        contention = _difference(cost.typical_s, wrapped)
        return [
            Part(name=CONTENTION, time_s=contention, reason=_NOT_WRAPPED),
            *parts_after_contention(cost),
        ]

    def _smaller_batch(self) -> Estimate | None:
        """What a rank's share of the batch takes alone, beyond its share of the time."""
        if self._share_as_fed is None:
            return None
        return smaller_batch_cost(self._full, self._plain, self._share_as_fed)

    def _input(self) -> Estimate | None:
        """What waiting for samples adds on N ranks, beyond what it adds on one."""
        if self._fed is None or self._share is None or self._share_as_fed is None:
            return None
        many = difference_between(self._full.mean_steps_s, self._fed.mean_steps_s)
        alone = difference_between(self._share_as_fed.mean_steps_s, self._share.mean_steps_s)
        return difference(many, alone)


def parts_after_contention(cost: CommunicationCost) -> list[Part]:
    """A slow rank, random skew and communication, as far as they are separated."""
    parts = []
    unseparated: tuple[str, ...] = ()
    if cost.delay_s is None:
        unseparated = (STRAGGLERS,)
    else:
        parts.append(Part(name=STRAGGLERS, time_s=cost.delay_s))
    if cost.random_skew_s is None:
        unseparated = (*unseparated, RANDOM_SKEW)
    else:
        parts.append(Part(name=RANDOM_SKEW, time_s=cost.random_skew_s, includes=unseparated))
        unseparated = ()
    return [*parts, Part(name=COMMUNICATION, time_s=cost.communication_s, includes=unseparated)]


def _steps(configuration: Configuration | None) -> Sequence[float] | None:
    return None if configuration is None else configuration.mean_steps_s


def _difference(left: Sequence[float] | None, right: Sequence[float] | None) -> Estimate | None:
    return None if left is None or right is None else difference_between(left, right)


def smaller_batch_cost(full: Configuration, plain: Configuration, share: Configuration) -> Estimate:
    """What a rank's share of the batch takes alone, beyond its share of the time of the whole batch."""
    part = ideal_step_s(full, plain) / typical_step_s(plain.mean_steps_s)
    return difference_between(share.mean_steps_s, plain.mean_steps_s.map(lambda step_s: step_s * part))


def difference_between(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """The difference of two typical steps, with the interval of the difference of their means."""
    return moved(difference_of_means(left, right), typical_step_s(left) - typical_step_s(right))
