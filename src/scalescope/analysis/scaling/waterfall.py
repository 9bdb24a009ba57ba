"""The loss waterfall: where the speed of N ranks goes, each term measured by taking something away.

plain on one rank → inside the wrapper → N ranks that send nothing → the slowest of them in each step → full
training; strong scaling has the smaller batch before all that, and a loader's input comes last. The
differences of step times telescope, so terms and delivered speed add up to N.

`Waterfall.segments` is the bar that is drawn of it. Figure, table, sentence and JSON are all made of these
segments, so they cannot disagree.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.culprit import Straggler, find_culprit
from scalescope.analysis.statistics import Estimate, difference_of_means, mean_with_interval
from scalescope.experiment.ablations import (
    at_per_rank_batch,
    has_loader,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.trial import Trial

SMALLER_BATCH = "smaller batch"
WRAPPER = "wrapper"
CONTENTION = "contention"
STRAGGLERS = "stragglers"
RANDOM_SKEW = "random skew"
COMMUNICATION = "communication"
INPUT = "input"
TERMS = (SMALLER_BATCH, WRAPPER, CONTENTION, STRAGGLERS, RANDOM_SKEW, COMMUNICATION, INPUT)
DELIVERED = "delivered"
NOT_SIGNIFICANT = "not significant"
NOT_SEPARATED = "not separated"

# not_significant: the interval includes zero. no_interval: too few launches for one. not_measured: the rest
# that is left for terms that are unknown.
Significance = Literal["significant", "not_significant", "no_interval", "not_measured"]
_ROUNDING = 1e-9  # of all ranks; less is the rounding of sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of the loss: time of a step, and how many ranks' worth of speed that is; None is unknown."""

    name: str
    time_s: Estimate | None
    lost: Estimate | None
    reason: str | None = None  # why it is unknown

    @property
    def significance(self) -> Significance:
        if self.lost is None:
            return "not_measured"
        if self.lost.low is None or self.lost.high is None:
            return "no_interval"
        return "not_significant" if self.lost.low <= 0.0 <= self.lost.high else "significant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the drawn bar, in ranks' worth of speed: right of zero where it counts for the ranks, left
    of zero where it is negative."""

    name: str  # delivered, a term, not significant, or not separated
    terms: tuple[str, ...]  # what it holds; empty for what is delivered
    value: float
    begin: float
    end: float
    significance: Significance | None  # None for what is delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """What N ranks deliver and where the rest went."""

    trial: Trial
    step_s: float
    ideal_s: float  # the step that would deliver N times one rank
    delivered: float
    terms: tuple[Term, ...]
    unexplained_s: float  # of terms that are unknown, together
    straggler: Straggler | None
    simple_comm_s: Estimate  # T_multi − T_single: what people often call communication

    @property
    def ranks(self) -> int:
        return self.trial.world_size

    @property
    def lost(self) -> float:
        return self.ranks - self.delivered

    def term(self, name: str) -> Term | None:
        return next((term for term in self.terms if term.name == name), None)

    def terms_that_are(self, significance: Significance) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.significance == significance)

    @property
    def not_separated(self) -> float:
        """What is left for the terms that are unknown, together, in ranks' worth of speed."""
        return self.unexplained_s * self.ranks / self.step_s

    @property
    def largest(self) -> Term | None:
        """The term that costs most; None where nothing is lost for sure, or nothing is known."""
        known = [
            term
            for term in (*self.terms_that_are("significant"), *self.terms_that_are("no_interval"))
            if term.lost is not None and term.lost.value > 0.0
        ]
        return max(known, key=lambda term: term.lost.value if term.lost else 0.0, default=None)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The bar as it is drawn: what is right of zero minus what is left of zero is N."""
        parts: list[tuple[str, tuple[str, ...], float, Significance | None]] = [
            (DELIVERED, (), self.delivered, None)
        ]
        together = self.terms_that_are("not_significant")
        parts += [
            (term.name, (term.name,), term.lost.value, term.significance)
            for term in self.terms
            if term.lost is not None and term not in together
        ]
        if together:
            names = tuple(term.name for term in together)
            value = math.fsum(term.lost.value for term in together if term.lost is not None)
            parts.append((NOT_SIGNIFICANT, names, value, "not_significant"))
        unknown = tuple(term.name for term in self.terms_that_are("not_measured"))
        if unknown or abs(self.not_separated) > _ROUNDING * self.ranks:
            parts.append((NOT_SEPARATED, unknown, self.not_separated, "not_measured"))
        return _laid_out(parts)


def _laid_out(
    parts: Sequence[tuple[str, tuple[str, ...], float, Significance | None]],
) -> tuple[Segment, ...]:
    """Positive parts one after the other from zero to the right, negative ones from zero to the left."""
    segments = []
    left = right = 0.0
    for name, terms, value, significance in parts:
        begin, end = (left + value, left) if value < 0.0 else (right, right + value)
        left, right = min(left, begin), max(right, end)
        segments.append(
            Segment(name=name, terms=terms, value=value, begin=begin, end=end, significance=significance)
        )
    return tuple(segments)


def waterfall_of(configuration: Configuration, by_trial: Mapping[str, Configuration]) -> Waterfall | None:
    """The waterfall of a configuration, from all by trial; None without plain training on one rank."""
    trial = configuration.trial
    plain = by_trial.get(single_rank_baseline(trial).trial_id)
    if plain is None or not 1 < trial.world_size == trial.replicas:  # a pipeline's ranks share one batch
        return None
    chain = _Chain(configuration, plain, by_trial)
    parts = chain.parts()
    step_s, ideal_s = _typical(configuration.mean_steps_s), chain.ideal_s
    terms = tuple(_term(name, time_s, reason, trial.world_size / step_s) for name, time_s, reason in parts)
    explained_s = sum(term.time_s.value for term in terms if term.time_s is not None)
    return Waterfall(
        trial=trial,
        step_s=step_s,
        ideal_s=ideal_s,
        delivered=trial.world_size * ideal_s / step_s,
        terms=terms,
        unexplained_s=step_s - ideal_s - explained_s,
        straggler=chain.straggler(),
        simple_comm_s=_difference_between(configuration.mean_steps_s, chain.alone_s),
    )


Part = tuple[str, Estimate | None, str | None]


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
        self._without_comm = None if without_comm is None else by_trial.get(without_comm.trial_id)
        self._fed = by_trial.get(with_preloaded_input(trial).trial_id)
        self._share_as_fed = by_trial.get(single_rank_baseline(share).trial_id)

    @property
    def ideal_s(self) -> float:
        """A step of N ranks that lost nothing: one rank's step when weak, an N-th of it when strong."""
        alone_s = _typical(self._plain.mean_steps_s)
        return (
            alone_s
            * self._full.trial.samples_per_step
            / (self._plain.trial.samples_per_step * self._full.trial.world_size)
        )

    @property
    def alone_s(self) -> list[float]:
        """Steps of one rank with as many samples as one of N has."""
        return (self._share_as_fed or self._plain).mean_steps_s

    def parts(self) -> list[Part]:
        """(name, time, why unknown) of every term that this job has."""
        launches = None if self._without_comm is None else self._without_comm.launches
        # The median rank, not the mean: one late rank is a straggler, not contention.
        usual = (
            None if launches is None else [statistics.median_low(launch.rank_means_s) for launch in launches]
        )
        slowest = None if launches is None else [statistics.fmean(launch.step_times_s) for launch in launches]
        late = None if usual is None or slowest is None else _paired(slowest, usual)
        share, wrapped = _steps(self._share), _steps(self._wrapped)
        no_comm_reason = "the same ranks without communication were not measured"
        if without_communication(self._full.trial) is None:
            no_comm_reason = "communication cannot be switched off for this strategy with these settings"
        parts: list[Part] = []
        if self._full.trial.mode == "strong":
            parts.append(
                (
                    SMALLER_BATCH,
                    self._smaller_batch(),
                    "one rank was not measured with its share of the batch",
                )
            )
        parts += [
            (WRAPPER, _difference(wrapped, share), "one rank in the wrapper was not measured"),
            (CONTENTION, _difference(usual, wrapped), no_comm_reason),
            (STRAGGLERS, late, no_comm_reason),
            (COMMUNICATION, _difference(_steps(self._fed), slowest), no_comm_reason),
        ]
        if has_loader(self._full.trial):
            parts.append((INPUT, self._input(), "steps with preloaded samples were not measured"))
        return parts

    def _smaller_batch(self) -> Estimate | None:
        """What a rank's share of the batch takes alone, beyond its share of the time."""
        if self._share_as_fed is None:
            return None
        ideal = [
            step * self.ideal_s / _typical(self._plain.mean_steps_s) for step in self._plain.mean_steps_s
        ]
        return _difference_between(self._share_as_fed.mean_steps_s, ideal)

    def _input(self) -> Estimate | None:
        """What waiting for samples adds on N ranks, beyond what it adds on one."""
        if self._fed is None or self._share is None or self._share_as_fed is None:
            return None
        many = _difference_between(self._full.mean_steps_s, self._fed.mean_steps_s)
        alone = _difference_between(self._share_as_fed.mean_steps_s, self._share.mean_steps_s)
        return _minus(many, alone)

    def straggler(self) -> Straggler | None:
        """The rank that all wait for; unknown where the ranks were not measured without communication."""
        if self._without_comm is None:
            return None
        return find_culprit([launch.rank_means_s for launch in self._without_comm.launches])


def _steps(configuration: Configuration | None) -> list[float] | None:
    return None if configuration is None else configuration.mean_steps_s


def _difference(left: Sequence[float] | None, right: Sequence[float] | None) -> Estimate | None:
    return None if left is None or right is None else _difference_between(left, right)


def _typical(steps_s: Sequence[float]) -> float:
    """The mean of logarithms, exponentiated: what throughput and speedup are made of everywhere else."""
    return statistics.geometric_mean(steps_s)


def _difference_between(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """The difference of two typical steps, with the interval of the difference of their means."""
    return _moved(difference_of_means(left, right), _typical(left) - _typical(right))


def _moved(estimate: Estimate, value: float) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return Estimate(value)
    return Estimate(value, estimate.low + value - estimate.value, estimate.high + value - estimate.value)


def _paired(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """The difference of typical steps, with the interval of differences inside launches."""
    inside = mean_with_interval([value - other for value, other in zip(left, right, strict=True)])
    return _moved(inside, _typical(left) - _typical(right))


def _minus(left: Estimate, right: Estimate) -> Estimate:
    value = left.value - right.value
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return Estimate(value)
    half = ((left.high - left.low) ** 2 + (right.high - right.low) ** 2) ** 0.5 / 2.0
    return Estimate(value, value - half, value + half)


def _term(name: str, time_s: Estimate | None, reason: str | None, ranks_per_s: float) -> Term:
    if time_s is None:
        return Term(name=name, time_s=None, lost=None, reason=reason)
    low = None if time_s.low is None else time_s.low * ranks_per_s
    high = None if time_s.high is None else time_s.high * ranks_per_s
    return Term(name=name, time_s=time_s, lost=Estimate(time_s.value * ranks_per_s, low, high))
