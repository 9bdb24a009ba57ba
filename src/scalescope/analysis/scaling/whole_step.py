"""The whole step of N ranks: one rank's step with its terms, then what more ranks add to it.

One rank's step is the ideal of the scaling waterfall: for strong scaling its N-th part. Its terms are scaled
to that; all parts together are the measured step of N ranks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.scaling.waterfall import Segment, Significance, Waterfall, scaled
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.experiment.explanations import single_rank_baseline

Origin = Literal["one_rank", "more_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePart:
    """A part of the step: of one rank's step, or added by more ranks."""

    name: str
    origin: Origin
    time_s: Estimate
    significance: Significance | None = None  # of what more ranks add

    @property
    def label(self) -> str:
        """Unique among the parts of a step: both sides may have copies."""
        return self.name if self.origin == "one_rank" else f"more ranks: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """A step of N ranks; its parts add up to it."""

    waterfall: Waterfall
    one_rank: StepWaterfall
    ideal_s: float | None  # one rank's ideal, scaled as its step is
    parts: tuple[WholePart, ...]

    @property
    def step_s(self) -> float:
        return self.waterfall.step_s

    @property
    def one_rank_s(self) -> float:
        """One rank's step, or its N-th part."""
        return self.waterfall.ideal_s

    @property
    def lost_before_s(self) -> float | None:
        """What one rank's step takes beyond the ideal; None where that is unknown."""
        return None if self.ideal_s is None else self.one_rank_s - self.ideal_s

    @property
    def lost_by_ranks_s(self) -> float:
        """What more ranks add."""
        return self.step_s - self.one_rank_s

    def parts_of(self, origin: Origin) -> tuple[WholePart, ...]:
        return tuple(part for part in self.parts if part.origin == origin)


def whole_step(waterfall: Waterfall, steps: Iterable[StepWaterfall]) -> WholeStep | None:
    """The waterfall continued from that of its one rank, which is among `steps`; None where it is not."""
    baseline = single_rank_baseline(waterfall.trial).trial_id
    one_rank = next((step for step in steps if step.trial.trial_id == baseline), None)
    if one_rank is None or one_rank.step_s <= 0.0:
        return None
    factor = waterfall.ideal_s / one_rank.step_s
    of_one_rank = [
        WholePart(name=term.name, origin="one_rank", time_s=scaled(term.time_s, factor))
        for term in one_rank.terms
        if term.time_s.value != 0.0
    ]
    return WholeStep(
        waterfall=waterfall,
        one_rank=one_rank,
        ideal_s=None if one_rank.ideal_s is None else one_rank.ideal_s * factor,
        parts=(*of_one_rank, *(_added(segment, waterfall) for segment in waterfall.segments[1:])),
    )


def _added(segment: Segment, waterfall: Waterfall) -> WholePart:
    term = waterfall.term(segment.name)
    known = None if term is None else term.time_s
    time_s = Estimate(segment.value * waterfall.step_s / waterfall.ranks) if known is None else known
    return WholePart(name=segment.name, origin="more_ranks", time_s=time_s, significance=segment.significance)
