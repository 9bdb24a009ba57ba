"""Batch lines: one rank's profile at another batch size, from those that were measured."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.errors import BadInput
from scalescope.experiment.same_job import BATCH, job_key


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProfile:
    """A profile at a batch size; `assumptions` says in sentences what was not measured."""

    profile: RankProfile
    assumptions: tuple[str, ...] = ()


def profile_at(profiles: Sequence[MeasuredProfile], batch_size: int) -> BatchProfile:
    """The profile of the first of these jobs with so many samples per rank and micro-batch.

    Gradients keep their bytes and their share of the backward pass; the optimizer does not depend on samples.
    """
    if not profiles:
        raise BadInput("no profile of one rank was measured; scalescope train and scale measure them")
    if batch_size < 1:
        raise BadInput(f"batch_size must be a positive integer, got {batch_size}")
    job = job_key(profiles[0].trial, ignoring=BATCH)
    same_job = [measured for measured in profiles if job_key(measured.trial, ignoring=BATCH) == job]
    by_samples = {measured.profile.samples: measured.profile for measured in reversed(same_job)}
    measured = [by_samples[samples] for samples in sorted(by_samples)]
    nearest = min(measured, key=lambda profile: abs(profile.samples - batch_size))
    if nearest.samples == batch_size:
        return BatchProfile(profile=nearest)
    return BatchProfile(
        profile=_at(measured, nearest, batch_size), assumptions=_assumptions(measured, batch_size)
    )


def _assumptions(measured: Sequence[RankProfile], batch_size: int) -> tuple[str, ...]:
    least, most = measured[0].samples, measured[-1].samples
    if len(measured) == 1:
        return (f"a step grows in proportion to its batch: {least} samples per rank were measured",)
    if least <= batch_size <= most:
        return ()
    return (f"a step grows with its batch beyond {least} to {most} samples per rank as between them",)


def _at(measured: Sequence[RankProfile], nearest: RankProfile, batch_size: int) -> RankProfile:
    def on_line(part: Callable[[RankProfile], float]) -> float:
        return _on_line([(profile.samples, part(profile)) for profile in measured], batch_size)

    forward_s, backward_s = on_line(lambda p: p.forward_s), on_line(lambda p: p.backward_s)
    forward, backward = _ratio(forward_s, nearest.forward_s), _ratio(backward_s, nearest.backward_s)
    share = batch_size / nearest.samples
    return dataclasses.replace(
        nearest,
        samples=batch_size,
        input_s=on_line(lambda p: p.input_s),
        forward_s=forward_s,
        backward_s=backward_s,
        gradients=tuple(
            dataclasses.replace(gradient, ready_s=gradient.ready_s * backward)
            for gradient in nearest.gradients
        ),
        units=tuple(
            dataclasses.replace(
                unit,
                forward_s=unit.forward_s * forward,
                backward_s=unit.backward_s * backward,
                activation_bytes=round(unit.activation_bytes * share),
            )
            for unit in nearest.units
        ),
    )


def _on_line(points: Sequence[tuple[int, float]], samples: int) -> float:
    """The least-squares line through the points, which does not fall; through the origin where there is one
    point, and where the line is negative."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    squares = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / squares if squares else mean_y / mean_x
    if slope < 0.0:
        return mean_y
    time_s = mean_y + slope * (samples - mean_x)
    return time_s if time_s > 0.0 else points[0][1] * samples / points[0][0]


def _ratio(now_s: float, before_s: float) -> float:
    return now_s / before_s if before_s > 0.0 else 1.0
