"""Prediction: one row of the answer, each figure with its interval."""

from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import StepTimeline
from scalescope.results.ledger import PredictionKind

# What takes the largest part of a step.
Limit = Literal["compute", "communication", "input", "stragglers", "optimizer", "pipeline bubble", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A predicted value with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a setup would do."""

    setup: Setup
    kind: PredictionKind
    curve_ranks: int | None  # on how many ranks the collectives were measured; None where they were not
    samples_per_step: int  # of all ranks
    step_s: Range
    samples_per_s: Range
    efficiency: Range  # against one rank
    exposed_s: Range
    memory_bytes: Range | None  # per rank; None where it is not known
    limit: Limit
    timeline: StepTimeline
    calibration: str  # where the width of the intervals comes from, in words

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.timeline.assumptions

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.assumptions)
