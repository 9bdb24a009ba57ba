"""A prediction for a number of ranks: step, throughput, limits, memory, and whether it is worth its price."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.prediction.collective_times import CollectiveTimes, MeasuredTimes
from scalescope.analysis.prediction.intervals import (
    HalfWidths,
    LedgerResidual,
    Origin,
    Uncertainty,
    doublings,
    half_widths,
)
from scalescope.analysis.prediction.jobs import JobInputs
from scalescope.analysis.prediction.profiles import MeasuredProfile, RankProfile
from scalescope.analysis.prediction.setup import Fitted, Setup, StepTimeline
from scalescope.analysis.prediction.simulation import simulate
from scalescope.catalog import cards
from scalescope.catalog.training import STATE_VALUES
from scalescope.catalog.traits import MemoryLayout
from scalescope.experiment.trial import Trial
from scalescope.results.ledger import CurveOrigin, PredictionKind

# ---- Prediction: one row of the answer, each figure with its interval


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


# ---- Memory per rank in another setup: what one rank took, with what the strategy adds or cuts


_SAME, _OTHER = 0.05, 0.15  # half widths: as measured, and by formulas of another strategy


def memory_per_rank(measured: MeasuredProfile, trial: Trial, setup: Setup) -> Range | None:
    """Bytes of the device at the peak; None where the measurement or a formula is missing."""
    alone = measured.memory_bytes
    layout = _layout(trial, setup)
    if alone is None or layout is None:
        return None
    before = (measured.trial.memory_layout if measured.trial.is_wrapped else None) or MemoryLayout()
    added = _added(measured, before, layout)
    cut = _cut(measured, layout, setup.world_size)
    if added is None or cut is None:
        return None
    value = max(0.0, alone + added - cut)
    half = value * (_SAME if not layout.sharded else _OTHER)
    return Range(value=value, low=value - half, high=value + half)


def _layout(trial: Trial, setup: Setup) -> MemoryLayout | None:
    if trial.is_command:
        return MemoryLayout() if setup.strategy == "ddp" else None
    layout: MemoryLayout | None = cards.card("strategies", setup.strategy).memory_layout(trial.settings)
    return layout


def _added(measured: MeasuredProfile, before: MemoryLayout, layout: MemoryLayout) -> float | None:
    """What the strategy keeps besides: copies of the gradients, or parameters that it gathers."""
    parameters = measured.profile.gradient_bytes
    copies = layout.copies_gradients + layout.keeps_first_buckets
    added = float(parameters * max(0, copies - before.copies_gradients - before.keeps_first_buckets))
    if layout.gathers == "nothing":
        return added
    units = [unit.parameter_bytes for unit in measured.profile.units]
    if layout.gathers == "block" and not units:
        return None
    gathered = max(units) if layout.gathers == "block" else parameters
    return added + (gathered / 2 if layout.gathers_16_bit else gathered)


def _cut(measured: MeasuredProfile, layout: MemoryLayout, ranks: int) -> float | None:
    """What a rank no longer holds of the states that are cut over all ranks."""
    parameters = measured.profile.gradient_bytes
    cut = 0.0
    for state in layout.sharded:
        values = STATE_VALUES.get(measured.trial.optimizer) if state == "optimizer" else 1
        if values is None:
            return None
        cut += parameters * values * (1.0 - 1.0 / ranks)
    return cut


# ---- Forecast: the figures of one setup, each with its 90 % interval


_PARTS: dict[str, Limit] = {
    "input": "input",
    "optimizer": "optimizer",
}  # of the compute lane; the rest computes

_NO_CONTENTION = 0.02  # less says that ranks do not disturb each other


def forecast(
    inputs: JobInputs, setup: Setup, residuals: Sequence[LedgerResidual] = (), *, batch: int | None = None
) -> Prediction:
    """What a job would do in a setup; `batch` per rank replaces its own."""
    at_batch = inputs.job.profile(setup, batch)
    measured, profile = at_batch.measured, at_batch.measured.profile
    fitted, contended = _contended(inputs.fitted(at_batch.nearest), setup.world_size)
    timeline = simulate(profile, inputs.times, setup, fitted)
    assumptions = (*at_batch.assumptions, *timeline.assumptions, *contended)
    timeline = dataclasses.replace(timeline, assumptions=assumptions)
    curve, curve_ranks = curve_of(inputs.times, setup.world_size)
    kind = PredictionKind(
        strategy=setup.strategy,
        backend=setup.backend,
        curve=curve,
        is_extrapolated=bool(timeline.assumptions),
        is_fitted=fitted.from_launches > 0,
    )
    uncertainty = Uncertainty(
        launches=profile.launch_spread,
        network=timeline.network_error,
        distance=doublings(setup.world_size, curve_ranks),
    )
    origin = Origin(machine=inputs.machine, family=f"{setup.strategy} {inputs.job.trial.workload}")
    widths = half_widths(kind, residuals, uncertainty, origin)
    samples = samples_per_step(profile, setup)
    step_s = _step_range(timeline, widths)
    alone = setup.world_size * one_rank_rate(inputs, setup, batch)
    return Prediction(
        setup=setup,
        kind=kind,
        curve_ranks=curve_ranks,
        samples_per_step=samples,
        step_s=step_s,
        samples_per_s=_per(samples, step_s),
        efficiency=_per(samples / alone, step_s),
        exposed_s=_range_around(timeline.exposed_s, widths.exposed * timeline.step_s),
        memory_bytes=memory_per_rank(measured, inputs.job.trial, setup),
        limit=limit_of(timeline),
        timeline=timeline,
        calibration=widths.calibration,
    )


def _contended(fitted: Fitted, ranks: int) -> tuple[Fitted, tuple[str, ...]]:
    """With the contention of the nearest number of ranks, where that of this number is not known."""
    known = fitted.contention
    if ranks == 1 or ranks in known or not known:
        return fitted, ()
    nearest = min(known, key=lambda size: abs(math.log(size / ranks)))
    carried = dataclasses.replace(fitted, contention={**known, ranks: known[nearest]})
    if abs(known[nearest] - 1.0) < _NO_CONTENTION:
        return carried, ()
    return carried, (f"other ranks slow compute as much as on {nearest} ranks",)


def samples_per_step(profile: RankProfile, setup: Setup) -> int:
    """Samples of all ranks; the ranks of a pipeline share them."""
    if setup.strategy == "pipeline":
        return profile.samples * setup.micro_batches
    return profile.samples * setup.accumulation_steps * setup.world_size


def one_rank_rate(inputs: JobInputs, setup: Setup, batch: int | None = None) -> float:
    """Samples per second of one rank that does the same job alone."""
    alone = Setup(world_size=1, backend=setup.backend, accumulation_steps=setup.accumulation_steps)
    at_batch = inputs.job.profile(alone, batch)
    profile = at_batch.measured.profile
    timeline = simulate(profile, inputs.times, alone, inputs.fitted(at_batch.nearest))
    return profile.samples * alone.accumulation_steps / timeline.step_s


def curve_of(times: CollectiveTimes, ranks: int) -> tuple[CurveOrigin, int | None]:
    """Where times for this many ranks come from, and on how many ranks they were measured."""
    sizes = times.world_sizes if isinstance(times, MeasuredTimes) else ()
    if not sizes:
        return "assumed", None
    if ranks in sizes or ranks == 1:
        return "same ranks", ranks
    return "other ranks", max((size for size in sizes if size <= ranks), default=sizes[0])


def limit_of(timeline: StepTimeline) -> Limit:
    """What takes the largest part of the step."""
    parts: dict[Limit, float] = {"compute": 0.0}
    for event in timeline.events:
        if event.lane == "compute":
            name = _PARTS.get(event.name, "compute")
            parts[name] = parts.get(name, 0.0) + event.end_s - event.begin_s
    parts["communication"] = timeline.exposed_s
    parts["stragglers"] = timeline.straggling_s
    parts["pipeline bubble"] = timeline.bubble_s
    parts["host"] = timeline.host_s
    return max(parts, key=lambda name: parts[name])


def _step_range(timeline: StepTimeline, widths: HalfWidths) -> Range:
    """However fast the network is, a step takes what it computes."""
    step_s = timeline.step_s
    computing_s = (step_s - timeline.exposed_s) * math.exp(-widths.near)
    return Range(
        value=step_s,
        low=max(step_s * math.exp(-widths.step), computing_s),
        high=step_s * math.exp(widths.step),
    )


def _per(amount: float, time_s: Range) -> Range:
    return Range(value=amount / time_s.value, low=amount / time_s.high, high=amount / time_s.low)


def _range_around(value: float, half: float) -> Range:
    return Range(value=value, low=max(0.0, value - half), high=value + half)


# ---- Worth: how many ranks pay off, and what a million samples cost


LEAST_MARGINAL = 0.5  # of what another rank would deliver alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a number of ranks adds to the largest smaller one that is worth it."""

    ranks: int
    beyond: int  # the number of ranks that it is held against; 1 where no smaller one is worth it
    marginal: float  # what the added ranks deliver ÷ what as many would alone
    cost_per_million: float | None = None  # samples; in the currency of the price

    @property
    def is_worth_it(self) -> bool:
        """Decided by the figure that is shown, in whole percent."""
        return round(100.0 * self.marginal) >= round(100.0 * LEAST_MARGINAL)


def worth_of(predictions: Sequence[Prediction], gpu_hour_price: float | None = None) -> tuple[Worth, ...]:
    """Each number of ranks against the largest smaller one that is worth it, or else against one rank.

    A poor addition is made up for by later ones: the second rank often costs more than all others, since
    communication begins with it.
    """
    ranks, delivered = 1, 1.0
    answers = []
    for prediction in sorted(predictions, key=lambda prediction: prediction.setup.world_size):
        size = prediction.setup.world_size
        speedup = prediction.efficiency.value * size
        marginal = (speedup - delivered) / (size - ranks) if size > ranks else prediction.efficiency.value
        cost = None if gpu_hour_price is None else cost_per_million(prediction, gpu_hour_price)
        answers.append(Worth(ranks=size, beyond=ranks, marginal=marginal, cost_per_million=cost))
        if answers[-1].is_worth_it:
            ranks, delivered = size, speedup
    return tuple(answers)


def cost_per_million(prediction: Prediction, gpu_hour_price: float) -> float:
    """What a million samples cost when every rank has a GPU of that price."""
    hours = 1e6 / prediction.samples_per_s.value / 3600.0
    return hours * prediction.setup.world_size * gpu_hour_price


def most_worth(answers: Sequence[Worth]) -> int | None:
    """The largest number of ranks that is worth it; None where no number is."""
    return max((worth.ranks for worth in answers if worth.is_worth_it), default=None)
