"""The loss waterfall: where the speed of N ranks goes, in terms that add up with the delivered speed to N.

`by_ablation` measures terms by taking something away, `by_trace` reads them from recorded steps where nothing
can be taken away. `Waterfall.segments` is the bar that is drawn of either. Figure, table, sentence and JSON
are all made of these segments, so they cannot disagree.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.culprit import Straggler
from scalescope.analysis.statistics import Estimate, difference_of_means, moved
from scalescope.experiment.trial import Trial

SMALLER_BATCH = "smaller batch"
WRAPPER = "wrapper"
CONTENTION = "contention"
STRAGGLERS = "stragglers"
RANDOM_SKEW = "random skew"
COMMUNICATION = "communication"
BETWEEN_RANKS = "between ranks"  # contention, stragglers and communication, where nothing separates them
INPUT = "input"
# Terms that only a trace gives.
WAITING = "waiting for peers"
SLOWED_COMPUTE = "slowed compute"
COPIES = "copies"
IDLE_HOST = "idle: host launches too late"
IDLE_INPUT = "idle: waiting for samples"
IDLE_QUEUED = "idle: queued behind another stream"
# Of pipelines.
MICROBATCHES = "smaller microbatches"
IMBALANCE = "unequal stages"
BUBBLE = "pipeline bubble"
EXCHANGE = "exchange between stages"
TERMS = (
    SMALLER_BATCH, WRAPPER, CONTENTION, STRAGGLERS, RANDOM_SKEW, COMMUNICATION, INPUT, WAITING,
    SLOWED_COMPUTE, COPIES, IDLE_HOST, IDLE_INPUT, IDLE_QUEUED, MICROBATCHES, IMBALANCE, BUBBLE, EXCHANGE,
    BETWEEN_RANKS,
)  # fmt: skip
DELIVERED = "delivered"
NOT_SIGNIFICANT = "not significant"
NOT_SEPARATED = "not separated"

# not_significant: the interval includes zero. no_interval: too few launches for one. not_measured: the rest
# that is left for terms that are unknown.
Significance = Literal["significant", "not_significant", "no_interval", "not_measured"]
Source = Literal["ablation", "trace"]
_ROUNDING = 1e-9  # of all ranks; less is the rounding of sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of the loss: time of a step, and how many ranks' worth of speed that is; None is unknown."""

    name: str
    time_s: Estimate | None
    lost: Estimate | None
    reason: str | None = None  # why it is unknown
    includes: tuple[str, ...] = ()  # other terms that could not be separated from it
    merged_because: str | None = None  # why not, where no launch of this job could do it

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
class CommunicationSplit:
    """What communication consists of, by a trace, in time of a step: what no compute hides, and by how much
    it slows the compute that hides the rest."""

    exposed_s: Estimate
    slowed_compute_s: Estimate


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
    source: Source = "ablation"
    split: CommunicationSplit | None = None  # of the term communication
    hook_s: float | None = None  # per step, of the hook that replaces communication in the ablation

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
        """The bar as drawn: what is right of zero minus what is left of zero is N."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A term before it is held against the step: its time, or why that is unknown."""

    name: str
    time_s: Estimate | None
    reason: str | None = None
    includes: tuple[str, ...] = ()
    merged_because: str | None = None

    def term(self, ranks_per_s: float) -> Term:
        """`ranks_per_s` is the speed that a second of the step costs."""
        lost = None if self.time_s is None else scaled(self.time_s, ranks_per_s)
        return Term(
            name=self.name,
            time_s=self.time_s,
            lost=lost,
            reason=self.reason if self.time_s is None else None,
            includes=self.includes,
            merged_because=None if self.time_s is None else self.merged_because,
        )


def built_waterfall(
    full: Configuration,
    plain: Configuration,
    parts: Sequence[Part],
    *,
    simple_comm_s: Estimate,
    source: Source,
) -> Waterfall:
    """The waterfall of these parts; what they leave of the loss is unexplained."""
    trial = full.trial
    step_s, ideal_s = typical_step_s(full.mean_steps_s), ideal_step_s(full, plain)
    terms = tuple(part.term(trial.world_size / step_s) for part in parts)
    explained_s = math.fsum(term.time_s.value for term in terms if term.time_s is not None)
    return Waterfall(
        trial=trial,
        step_s=step_s,
        ideal_s=ideal_s,
        delivered=trial.world_size * ideal_s / step_s,
        terms=terms,
        unexplained_s=step_s - ideal_s - explained_s,
        straggler=None,
        simple_comm_s=simple_comm_s,
        source=source,
    )


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times a positive factor."""
    low = None if estimate.low is None else estimate.low * factor
    high = None if estimate.high is None else estimate.high * factor
    return Estimate(estimate.value * factor, low, high)


def ideal_step_s(full: Configuration, plain: Configuration) -> float:
    """A step of N ranks that lost nothing: one rank's step when weak, an N-th of it when strong."""
    alone_s = typical_step_s(plain.mean_steps_s)
    samples = full.trial.samples_per_step / plain.trial.samples_per_step
    return alone_s * samples / full.trial.world_size


def typical_step_s(steps_s: Sequence[float]) -> float:
    """The mean of logarithms, exponentiated: what throughput and speedup are made of everywhere else."""
    return statistics.geometric_mean(steps_s)


def smaller_batch_cost(full: Configuration, plain: Configuration, share: Configuration) -> Estimate:
    """What a rank's share of the batch takes alone, beyond its share of the time of the whole batch."""
    part = ideal_step_s(full, plain) / typical_step_s(plain.mean_steps_s)
    return difference_between(share.mean_steps_s, plain.mean_steps_s.map(lambda step_s: step_s * part))


def difference_between(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """The difference of two typical steps, with the interval of the difference of their means."""
    return moved(difference_of_means(left, right), typical_step_s(left) - typical_step_s(right))
