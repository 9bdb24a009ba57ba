"""The waterfall of a training command, by ablation: what can be compared is the same command on one rank.

There is no launch of one rank in the wrapper, unless the script wraps one rank as well; and where the command
divides a batch of its own among its ranks, none of one rank with its share. What these launches would
separate is part of the next term, which names it. Launches are subtracted from each other only where they
worked on the same number of samples per rank and step.
"""

import dataclasses
from collections.abc import Mapping

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.by_ablation import (
    NOT_SILENCED,
    difference_between,
    parts_after_contention,
    smaller_batch_cost,
    waterfall_of_parts,
)
from scalescope.analysis.scaling.communication import CommunicationCost, communication_cost, difference
from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
    COMMUNICATION,
    CONTENTION,
    INPUT,
    SMALLER_BATCH,
    STRAGGLERS,
    WRAPPER,
    Part,
    Waterfall,
)
from scalescope.analysis.statistics import Estimate, Sample
from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.ablations import (
    at_per_rank_batch,
    has_loader,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)

AGREES = 0.05  # of the samples per rank and step: the last batch of an epoch may be smaller
_UNWRAPPED = (None, "none")
_NO_UNWRAPPED_RANKS = "the script has no unwrapped form on several ranks"
_NO_SHARE = "one rank cannot be launched with its share of the command's batch"
_NOT_PRELOADED = "steps with preloaded samples were not measured"
_NO_ONE_RANK = "one rank with its share of the batch was not measured"
_CANNOT_BE_SILENCED = {
    "fsdp1": "communication cannot be removed from FSDP1",
    "deepspeed": "communication cannot be removed from DeepSpeed",
    "none": "no wrapper whose communication could be removed was observed",
}


def waterfall_of_command(
    full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
) -> Waterfall:
    """Every term that the launches separate; others are merged, or unknown, with the reason."""
    chain = _CommandChain(full, plain, by_trial)
    return waterfall_of_parts(full, plain, chain.parts(), chain.alone_s, chain.cost)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _OneRank:
    """One rank and the part of its step that one of N ranks would take; None was not measured."""

    preloaded: Configuration | None
    as_fed: Configuration | None
    part: float

    def steps_s(self, configuration: Configuration | None) -> Sample | None:
        if configuration is None:
            return None
        return configuration.mean_steps_s.map(lambda step_s: step_s * self.part)


class _CommandChain:
    """The configurations of a command's waterfall."""

    def __init__(
        self, full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
    ) -> None:
        self._full, self._plain = full, plain
        trial = full.trial
        self._has_share = trial.mode == "strong" and trial.options(Train).global_batch_size is not None
        self._one_rank = self._one_rank_of(by_trial)
        self._fed = by_trial.get(with_preloaded_input(trial).trial_id)
        without_comm = without_communication(with_preloaded_input(trial))
        self._can_be_silenced = without_comm is not None
        self._silent = None if without_comm is None else by_trial.get(without_comm.trial_id)
        self._mismatch = self._mismatch_of("without communication", self._silent) or self._mismatch_of(
            "with preloaded samples", self._fed
        )
        self.cost: CommunicationCost | None = None
        if self._silent is not None and self._fed is not None and self._mismatch is None:
            self.cost = communication_cost(self._fed, self._silent)

    def _one_rank_of(self, by_trial: Mapping[str, Configuration]) -> _OneRank:
        trial = self._full.trial
        alone = single_rank_baseline(at_per_rank_batch(trial) if self._has_share else trial)
        divides = trial.mode == "strong" and not self._has_share
        return _OneRank(
            preloaded=by_trial.get(with_preloaded_input(alone).trial_id),
            as_fed=by_trial.get(alone.trial_id) if self._has_share else self._plain,
            part=1.0 / trial.world_size if divides else 1.0,
        )

    @property
    def alone_s(self) -> Sample:
        """Steps of one rank, or the part of them that one of N would take."""
        return self._one_rank.steps_s(self._one_rank.as_fed) or self._plain.mean_steps_s

    def parts(self) -> list[Part]:
        """Every term that this job has."""
        parts = []
        if self._has_share:
            parts.append(Part(name=SMALLER_BATCH, time_s=self._smaller_batch(), reason=_NO_ONE_RANK))
        if not self._can_be_silenced:
            return [*parts, *self._between_ranks()]
        parts += self._separated() + self._input_parts()
        return parts

    def _separated(self) -> list[Part]:
        """Contention, with what no launch separates from it, and what follows."""
        if self.cost is None:
            reason = self._mismatch or (NOT_SILENCED if self._silent is None else _NOT_PRELOADED)
            return [Part(name=name, time_s=None, reason=reason) for name in _BETWEEN]
        merged, why = self._merged()
        mismatch = self._mismatch_of_one_rank()
        alone = None if mismatch else self._one_rank.steps_s(self._one_rank.preloaded)
        contention = None if alone is None else difference_between(self.cost.typical_s, alone)
        return [
            Part(
                name=CONTENTION,
                time_s=contention,
                reason=mismatch or _NOT_PRELOADED,
                includes=merged,
                merged_because=why,
            ),
            *parts_after_contention(self.cost),
        ]

    def _between_ranks(self) -> list[Part]:
        """All that several ranks lose to each other, as one term."""
        merged, why = self._merged()
        wrapper = self._wrapper or "none"
        reasons = "; ".join(
            filter(None, (_CANNOT_BE_SILENCED.get(wrapper, _CANNOT_BE_SILENCED["none"]), why))
        )
        many, alone = self._fed, self._one_rank.steps_s(self._one_rank.preloaded)
        is_preloaded = many is not None and alone is not None
        if not is_preloaded:
            many, alone = self._full, self._one_rank.steps_s(self._one_rank.as_fed)
        includes = (*merged, *_BETWEEN, *(() if is_preloaded or not self._has_loader else (INPUT,)))
        mismatch = self._mismatch_of("with preloaded samples", self._fed) or self._mismatch_of_one_rank()
        time_s = None
        if mismatch is None and many is not None and alone is not None:
            time_s = difference_between(many.mean_steps_s, alone)
        part = Part(
            name=BETWEEN_RANKS,
            time_s=time_s,
            reason=mismatch or _NO_ONE_RANK,
            includes=includes,
            merged_because=reasons,
        )
        return [part, *(self._input_parts() if is_preloaded else [])]

    def _merged(self) -> tuple[tuple[str, ...], str | None]:
        """What the first term between ranks includes, and why."""
        reasons = {}
        if self._full.trial.mode == "strong" and not self._has_share:
            reasons[SMALLER_BATCH] = _NO_SHARE
        if self._wrapper not in _UNWRAPPED and self._plain.wrapper in _UNWRAPPED:
            reasons[WRAPPER] = _NO_UNWRAPPED_RANKS
        return tuple(reasons), "; ".join(reasons.values()) or None

    @property
    def _wrapper(self) -> str | None:
        trial = self._full.trial
        return self._full.wrapper or trial.options(trial.workload_card).observed_wrapper

    @property
    def _has_loader(self) -> bool:
        return has_loader(self._full.trial)

    def _smaller_batch(self) -> Estimate | None:
        share = self._one_rank.as_fed
        return None if share is None else smaller_batch_cost(self._full, self._plain, share)

    def _input_parts(self) -> list[Part]:
        """What waiting for samples adds on N ranks, beyond what it adds on one."""
        if not self._has_loader:
            return []
        one_rank = self._one_rank
        alone, preloaded = one_rank.steps_s(one_rank.as_fed), one_rank.steps_s(one_rank.preloaded)
        mismatch = self._mismatch or self._mismatch_of_one_rank()
        if self._fed is None or alone is None or preloaded is None or mismatch is not None:
            return [Part(name=INPUT, time_s=None, reason=mismatch or _NOT_PRELOADED)]
        many = difference_between(self._full.mean_steps_s, self._fed.mean_steps_s)
        return [Part(name=INPUT, time_s=difference(many, difference_between(alone, preloaded)))]

    def _mismatch_of_one_rank(self) -> str | None:
        one_rank = self._one_rank
        return self._mismatch_of("on one rank", one_rank.as_fed, one_rank.part) or self._mismatch_of(
            "on one rank with preloaded samples", one_rank.preloaded, one_rank.part
        )

    def _mismatch_of(self, which: str, other: Configuration | None, part: float = 1.0) -> str | None:
        """How the samples per rank and step of other launches differ from those of normal ranks; None where
        they agree, or there are no such launches."""
        if other is None:
            return None
        here, there = _samples_of_a_rank(self._full), _samples_of_a_rank(other)
        if here is None or there is None:
            return "the samples per step of all launches are not known"
        if abs(there * part - here) <= AGREES * here:
            return None
        unit = self._full.unit
        return (
            f"launches {which} worked on {there * part:,.0f} {unit} per rank and step, normal ones on "
            f"{here:,.0f}"
        )


_BETWEEN = (CONTENTION, STRAGGLERS, COMMUNICATION)


def _samples_of_a_rank(configuration: Configuration) -> float | None:
    samples = configuration.samples_per_step
    return None if samples is None else samples / configuration.trial.world_size
