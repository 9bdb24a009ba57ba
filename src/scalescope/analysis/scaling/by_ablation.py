"""The waterfall by ablation: each term is the difference between two measurements that differ in one thing.

one rank with the whole batch → with its share of the batch → inside the wrapper → a typical one of N ranks
without communication → a persistently slow rank → random skew → N ranks with communication → with a loader

The differences of step times telescope, so terms and delivered speed add up to N. If a configuration was not
measured, its terms are unknown, with the reason. If a training command cannot have it, its term is part of
the next one, which names it: the script decides whether it wraps one rank, and may divide its batch itself.
"""

import dataclasses
from collections.abc import Mapping

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.by_trace import waterfall_by_trace, waterfall_of_pipeline
from scalescope.analysis.scaling.communication import CommunicationCost, communication_cost, difference
from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
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
    difference_between,
    smaller_batch_cost,
)
from scalescope.analysis.statistics import Estimate, Sample
from scalescope.experiment.explanations import (
    at_per_rank_batch,
    has_loader,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.trial import Trial

AGREES = 0.05  # of the samples per rank and step: the last batch of an epoch may be smaller
_BETWEEN = (CONTENTION, STRAGGLERS, COMMUNICATION)
_UNWRAPPED = (None, "none")
# Why a term is unknown
_NO_SHARE = "one rank was not measured with its share of the batch"
_NO_SHARE_OF_COMMAND = "one rank with its share of the batch was not measured"
_NOT_WRAPPED = "one rank in the wrapper was not measured"
_NOT_PRELOADED = "steps with preloaded samples were not measured"
_NOT_WITHOUT_COMM = "the same ranks without communication were not measured"
_CANNOT_REMOVE_COMM = "communication cannot be switched off for this strategy with these settings"
# Why a term is part of the next one
_CANNOT_SHARE = "one rank cannot be launched with its share of the command's batch"
_CANNOT_UNWRAP = "the script has no unwrapped form on several ranks"
_CANNOT_REMOVE_COMM_OF = {
    "fsdp1": "communication cannot be removed from FSDP1",
    "deepspeed": "communication cannot be removed from DeepSpeed",
}
_NO_WRAPPER = "no wrapper whose communication could be removed was observed"


def waterfall_of(full: Configuration, by_trial: Mapping[str, Configuration]) -> Waterfall | None:
    """The waterfall by ablation, or from traces if ablations leave communication unknown; None without plain
    training on one rank."""
    trial = full.trial
    plain = by_trial.get(single_rank_baseline(trial).trial_id)
    if plain is None or trial.world_size == 1:
        return None
    if trial.replicas < trial.world_size:  # the ranks share one batch
        parts = trial.strategy_card.parts_of_a_step(trial.rank_batch_size, trial.world_size, trial.settings)
        return None if parts is None else waterfall_of_pipeline(full, plain, parts)
    by_ablation = waterfall_by_ablation(full, plain, by_trial)
    communication = by_ablation.term(COMMUNICATION)
    if communication is not None and communication.time_s is not None:
        return by_ablation
    return waterfall_by_trace(full, plain, by_trial) or by_ablation


def waterfall_by_ablation(
    full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
) -> Waterfall:
    """Every term of the chain, with the cost of communication if it was measured."""
    chain = _Chain(full, plain, by_trial)
    simple_comm_s = difference_between(full.mean_steps_s, chain.one_rank_s)
    waterfall = built_waterfall(full, plain, chain.parts(), simple_comm_s=simple_comm_s, source="ablation")
    cost = chain.cost
    if cost is None:
        return waterfall
    return dataclasses.replace(waterfall, straggler=cost.straggler, split=cost.split, hook_s=cost.hook_s)


class _Chain:
    """The configurations of one waterfall, None if not measured, and the terms between them."""

    def __init__(
        self, full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
    ) -> None:
        def measured(trial: Trial | None) -> Configuration | None:
            return None if trial is None else by_trial.get(trial.trial_id)

        trial = full.trial
        is_strong = trial.mode == "strong"
        self._full, self._plain = full, plain
        self._is_command = trial.is_command
        # A global batch that was observed and not asked for is the command's own: it cannot be made smaller.
        self._has_share = is_strong and trial.settings.get("global_batch_size") is not None
        self._divides_batch = is_strong and not self._has_share
        self._part_of_step = 1.0 / trial.world_size if self._divides_batch else 1.0
        share = trial if self._divides_batch else at_per_rank_batch(trial)
        self._share_with_loader = measured(single_rank_baseline(share))
        self._share = measured(with_preloaded_input(single_rank_baseline(share)))
        # A command on one rank is the same job with and without the wrapper.
        self._wrapped = measured(with_preloaded_input(share.on_one_rank()))
        without_comm = without_communication(with_preloaded_input(trial))
        self._can_remove_comm = without_comm is not None
        self._without_comm = measured(without_comm)
        self._preloaded = measured(with_preloaded_input(trial))
        self._mismatch = self._mismatch_of(
            {"without communication": self._without_comm, "with preloaded samples": self._preloaded}
        )
        self._one_rank_mismatch = self._mismatch_of(
            {"on one rank": self._share_with_loader, "on one rank with preloaded samples": self._share},
            self._part_of_step,
        )
        self.cost: CommunicationCost | None = None
        if self._without_comm is not None and self._preloaded is not None and self._mismatch is None:
            self.cost = communication_cost(self._preloaded, self._without_comm)

    @property
    def one_rank_s(self) -> Sample:
        """Steps of one rank with the samples that one of N ranks has."""
        return self._steps_s(self._share_with_loader) or self._plain.mean_steps_s

    def parts(self) -> list[Part]:
        """Every term that this job has, in the order of the chain."""
        parts = []
        if self._has_share:
            share = self._share_with_loader
            cost_s = None if share is None else smaller_batch_cost(self._full, self._plain, share)
            reason = _NO_SHARE_OF_COMMAND if self._is_command else _NO_SHARE
            parts.append(Part(name=SMALLER_BATCH, time_s=cost_s, reason=reason))
        if not self._is_command:
            cost_s = _difference(self._steps_s(self._wrapped), self._steps_s(self._share))
            parts.append(Part(name=WRAPPER, time_s=cost_s, reason=_NOT_WRAPPED))
        if self._is_command and not self._can_remove_comm:
            return parts + self._together()
        return parts + self._separated() + self._input()

    def _separated(self) -> list[Part]:
        """Contention, a slow rank, random skew and communication. Several launches separate a slow rank, a
        record of who waits for whom separates random skew."""
        cost = self.cost
        if cost is None:
            reason = self._why_not_separated
            return [Part(name=name, time_s=None, reason=reason) for name in _BETWEEN]
        contention_s = _difference(cost.typical_s, self._steps_s(self._wrapped))
        parts = [
            Part(
                name=CONTENTION,
                time_s=None if self._one_rank_mismatch else contention_s,
                reason=self._one_rank_mismatch or (_NOT_PRELOADED if self._is_command else _NOT_WRAPPED),
                includes=tuple(self._merged),
                merged_because="; ".join(self._merged.values()) or None,
            )
        ]
        unseparated: tuple[str, ...] = ()
        for name, cost_s in ((STRAGGLERS, cost.delay_s), (RANDOM_SKEW, cost.random_skew_s)):
            if cost_s is None:
                unseparated = (*unseparated, name)
            else:
                parts.append(Part(name=name, time_s=cost_s, includes=unseparated))
                unseparated = ()
        return [*parts, Part(name=COMMUNICATION, time_s=cost.communication_s, includes=unseparated)]

    @property
    def _why_not_separated(self) -> str:
        if not self._can_remove_comm:
            return _CANNOT_REMOVE_COMM
        is_removed = self._is_command and self._without_comm is not None
        return self._mismatch or (_NOT_PRELOADED if is_removed else _NOT_WITHOUT_COMM)

    def _together(self) -> list[Part]:
        """All that several ranks lose to each other as one term, with preloaded samples if possible."""
        many, alone = self._full, self._share_with_loader
        includes, after = (*self._merged, *_BETWEEN), self._input()
        if self._preloaded is not None and self._share is not None:
            many, alone = self._preloaded, self._share
        elif after:
            includes, after = (*includes, INPUT), []
        mismatch = self._mismatch or self._one_rank_mismatch
        cost_s = _difference(many.mean_steps_s, self._steps_s(alone))
        why = (_CANNOT_REMOVE_COMM_OF.get(self._wrapper or "none", _NO_WRAPPER), *self._merged.values())
        together = Part(
            name=BETWEEN_RANKS,
            time_s=None if mismatch else cost_s,
            reason=mismatch or _NO_SHARE_OF_COMMAND,
            includes=includes,
            merged_because="; ".join(why),
        )
        return [together, *after]

    def _input(self) -> list[Part]:
        """What waiting for samples adds on N ranks, beyond what it adds on one."""
        if not has_loader(self._full.trial):
            return []
        alone_s, preloaded_s = self._steps_s(self._share_with_loader), self._steps_s(self._share)
        mismatch = self._mismatch or self._one_rank_mismatch
        if self._preloaded is None or alone_s is None or preloaded_s is None or mismatch is not None:
            return [Part(name=INPUT, time_s=None, reason=mismatch or _NOT_PRELOADED)]
        many_s = difference_between(self._full.mean_steps_s, self._preloaded.mean_steps_s)
        return [Part(name=INPUT, time_s=difference(many_s, difference_between(alone_s, preloaded_s)))]

    def _steps_s(self, one_rank: Configuration | None) -> Sample | None:
        """Steps of one rank; if the command divides its batch, the part of them that one of N ranks takes."""
        if one_rank is None:
            return None
        return one_rank.mean_steps_s.map(lambda step_s: step_s * self._part_of_step)

    @property
    def _merged(self) -> dict[str, str]:
        """The terms that are part of the first one between ranks, each with the reason."""
        merged = {SMALLER_BATCH: _CANNOT_SHARE} if self._divides_batch else {}
        if self._wrapper not in _UNWRAPPED and self._plain.wrapper in _UNWRAPPED:
            merged[WRAPPER] = _CANNOT_UNWRAP
        return merged

    @property
    def _wrapper(self) -> str | None:
        """What wraps the model, as observed in a command; None for other training."""
        return self._full.wrapper or self._full.trial.settings.get("observed_wrapper")

    def _mismatch_of(self, others: Mapping[str, Configuration | None], part: float = 1.0) -> str | None:
        """How samples per rank and step differ between launches of a command, which chooses its batch itself;
        None if they agree."""
        here = _samples_per_rank(self._full)
        for which, other in others.items():
            if other is None or not self._is_command:
                continue
            there = _samples_per_rank(other)
            if here is None or there is None:
                return "the samples per step of all launches are not known"
            if abs(there * part - here) > AGREES * here:
                worked = f"{there * part:,.0f} {self._full.unit} per rank and step"
                return f"launches {which} worked on {worked}, normal ones on {here:,.0f}"
        return None


def _difference(left: Sample | None, right: Sample | None) -> Estimate | None:
    return None if left is None or right is None else difference_between(left, right)


def _samples_per_rank(configuration: Configuration) -> float | None:
    samples = configuration.samples_per_step
    return None if samples is None else samples / configuration.trial.world_size
