"""Forecast: the figures of one setup, each with its 90 % interval."""

import dataclasses
import math
from collections.abc import Sequence

from scalescope.analysis.prediction.forecasts.intervals import (
    HalfWidths,
    LedgerResidual,
    Origin,
    Uncertainty,
    doublings,
    half_widths,
)
from scalescope.analysis.prediction.forecasts.memory import memory_per_rank
from scalescope.analysis.prediction.inputs import JobInputs
from scalescope.analysis.prediction.measured_times import MeasuredTimes
from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.analysis.prediction.prediction import Limit, Prediction, Range
from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.simulation import simulate
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.results.ledger import CurveOrigin, PredictionKind

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
        exposed_s=_beside(timeline.exposed_s, widths.exposed * timeline.step_s),
        memory_bytes=memory_per_rank(measured, inputs.job.trial, setup),
        limit=limit_of(timeline),
        timeline=timeline,
        calibration=widths.calibration,
    )


def _contended(fitted: Fitted, ranks: int) -> tuple[Fitted, tuple[str, ...]]:
    """With the contention of the nearest number of ranks, where that of so many is not known."""
    known = fitted.contention
    if ranks == 1 or ranks in known or not known:
        return fitted, ()
    nearest = min(known, key=lambda size: abs(math.log(size / ranks)))
    carried = dataclasses.replace(fitted, contention={**known, ranks: known[nearest]})
    if abs(known[nearest] - 1.0) < _NO_CONTENTION:
        return carried, ()
    return carried, (f"compute is slowed by other ranks as on {nearest} ranks",)


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
    """Where times for so many ranks come from, and on how many ranks they were measured."""
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


def _beside(value: float, half: float) -> Range:
    return Range(value=value, low=max(0.0, value - half), high=value + half)
