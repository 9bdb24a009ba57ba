"""What a rank's recorded step tells for a prediction: parts, gradients, units, and growth with the batch."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.errors import BadInput
from scalescope.experiment.explanations import BATCH, job_key
from scalescope.experiment.trial import Trial
from scalescope.results.result import AT_GPU_PACE, HOST_PARTS, ROOT_UNIT, RankRecord, Result, undisturbed
from scalescope.results.run import Run

# ---- Rank profile: what one rank's step consists of, and when each of its gradients becomes ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One parameter's gradient."""

    size_bytes: int
    ready_s: float  # after the backward pass began


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of the model that FSDP gathers as a whole, or a stage of a pipeline."""

    name: str
    parameter_bytes: int
    forward_s: float
    backward_s: float
    activation_bytes: int = 0  # that it hands to the next unit, of one micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """The parts of one rank's step without communication; forward and backward are of one micro-batch."""

    samples: int  # per rank and micro-batch
    input_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    rest_s: float = 0.0
    issue_s: float = 0.0  # by the host, of one micro-batch, where the GPU waits for it; 0 where it does not
    gradients: tuple[Gradient, ...] = ()  # in the order in which they become ready
    units: tuple[Unit, ...] = ()  # in the order of the forward pass
    buffer_bytes: int = 0  # that DDP broadcasts before each forward pass
    spread: float = 0.0  # standard deviation of a rank's step ÷ its mean
    launch_spread: float = 0.0  # the same between launches
    launches: int = 1

    @property
    def compute_s(self) -> float:
        """A whole step of one micro-batch without communication."""
        parts_s = self.input_s + self.forward_s + self.backward_s + self.optimizer_s + self.rest_s
        return max(parts_s, self.issue_s)

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.size_bytes for gradient in self.gradients)


# ---- Buckets: how DDP groups gradients for its exchange, once it has seen in which order they become ready


_MIB = 1 << 20
_DEFAULT_CAP = 25 * _MIB
_DEFAULT_FIRST = _MIB  # applies only where no cap was set


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedBucket:
    """Gradients that are exchanged together, as soon as the last of them is ready."""

    size_bytes: int
    ready_s: float


def buckets_of(gradients: Sequence[Gradient], cap_mb: float | None) -> tuple[ExchangedBucket, ...]:
    """A bucket closes once it reaches its cap, so it may be larger."""
    cap = _DEFAULT_CAP if cap_mb is None else int(cap_mb * _MIB)
    limit = _DEFAULT_FIRST if cap_mb is None else cap
    buckets: list[ExchangedBucket] = []
    size, ready_s = 0, 0.0
    for gradient in gradients:
        size += gradient.size_bytes
        ready_s = max(ready_s, gradient.ready_s)
        if size >= limit:
            buckets.append(ExchangedBucket(size_bytes=size, ready_s=ready_s))
            size, limit = 0, cap
    if size:
        buckets.append(ExchangedBucket(size_bytes=size, ready_s=ready_s))
    return tuple(buckets)


# ---- Profiles of a stored run: what launches of one rank recorded about their steps, launch by launch joined


_WAITING = 0.95  # a GPU that works for less of a step waits for its host
_CUT = 0.01  # of a launch's steps, at each end, before their spread is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """The profile of one configuration on one rank."""

    trial: Trial
    profile: RankProfile
    memory_bytes: int | None = None  # most memory of the device that was in use; None where it is unknown
    micro_batches: int = 1  # of the measured step


def profiles_of(run: Run) -> tuple[MeasuredProfile, ...]:
    """One profile for each configuration of one rank that was measured, in the order of its launches; those
    without a wrapper first."""
    launches = [result for result in run.of_status("ok") if _has_profile(result)]
    by_trial: dict[str, list[Result]] = {}
    for result in undisturbed(launches):
        by_trial.setdefault(result.trial_id, []).append(result)
    profiles = [_profile_of(results) for results in by_trial.values()]
    return tuple(sorted(profiles, key=lambda measured: measured.trial.is_wrapped))


def _has_profile(result: Result) -> bool:
    trial = result.trial
    if not trial.is_training or trial.world_size > 1 or trial.is_ablation or len(result.ranks) != 1:
        return False
    (record,) = result.ranks
    return bool(record.counters.get("profile/step_s") and record.samples.get("step_time_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfiledLaunch:
    """The step of a launch; gradients and units are shares of the pass that they belong to."""

    mean_s: float
    spread: float
    micro_batches: int
    parts_s: Mapping[str, float]  # those of passes are of one micro-batch
    issue_s: float  # the step, where the GPU waits for its host; otherwise 0
    gradients: Mapping[int, tuple[int, float]]  # by parameter: bytes, and when it is ready
    units: Sequence[Unit]


def _profile_of(results: Sequence[Result]) -> MeasuredProfile:
    trial = results[0].trial
    records = [result.ranks[0] for result in results]
    steps = [_launch_of(trial, record) for record in records]
    means_s = [step.mean_s for step in steps]
    parts_s = {name: statistics.fmean(step.parts_s[name] for step in steps) for name in HOST_PARTS}
    micro_batches = steps[0].micro_batches
    mean_s = statistics.fmean(means_s)
    issue_s = statistics.fmean(step.issue_s for step in steps)
    profile = RankProfile(
        samples=max(1, trial.rank_batch_size // micro_batches),
        input_s=parts_s["input"],
        forward_s=parts_s["forward"],
        backward_s=parts_s["backward"],
        optimizer_s=parts_s["optimizer"],
        rest_s=0.0 if issue_s else max(0.0, mean_s - _sum_of(parts_s, micro_batches)),
        issue_s=issue_s / micro_batches,
        gradients=_gradients([step.gradients for step in steps], parts_s["backward"]),
        units=_units([step.units for step in steps], parts_s["forward"], parts_s["backward"]),
        buffer_bytes=_buffer_bytes(records[0]),
        spread=statistics.fmean(step.spread for step in steps),
        launch_spread=statistics.stdev(means_s) / mean_s if len(means_s) > 1 else 0.0,
        launches=len(results),
    )
    known = [peak for record in records if (peak := record.whole("peak_memory_bytes")) is not None]
    return MeasuredProfile(
        trial=trial, profile=profile, memory_bytes=max(known, default=None), micro_batches=micro_batches
    )


def _launch_of(trial: Trial, record: RankRecord) -> _ProfiledLaunch:
    times_s = record.samples["step_time_s"]
    mean_s = math.fsum(times_s) / len(times_s)
    micro_batches = record.whole("profile/micro_batches") or 1
    backward_s = record.number("profile/backward_s") or 0.0
    forward_s = record.number("profile/forward_s") or 0.0
    waits = _waits_for_host(record, mean_s, micro_batches)
    parts_s = _timed_parts(trial, record, micro_batches) or _scaled_parts(
        record, None if waits else mean_s, micro_batches
    )
    return _ProfiledLaunch(
        mean_s=mean_s,
        spread=_spread(times_s),
        micro_batches=micro_batches,
        parts_s=parts_s,
        issue_s=mean_s if waits else 0.0,
        gradients={
            int(row["parameter"] or 0): (int(row["size_bytes"] or 0), _share(row["ready_s"], backward_s))
            for row in record.tables.get("gradients", ())
        },
        units=[
            Unit(
                name=str(row["name"]),
                parameter_bytes=int(row["parameter_bytes"] or 0),
                forward_s=_share(row["forward_s"], forward_s),
                backward_s=_share(row["backward_s"], backward_s),
                activation_bytes=int(row["activation_bytes"] or 0),
            )
            for row in record.tables.get("units", ())
            if row["name"] != ROOT_UNIT
        ],
    )


def _timed_parts(trial: Trial, record: RankRecord, micro_batches: int) -> dict[str, float] | None:
    """The parts of the timed steps themselves: on the CPU the host's clock knows them.

    None on a GPU, which the host runs ahead of, and for steps that scripts and users make by themselves.
    """
    names = [f"host/{part}_s" for part in HOST_PARTS]
    if trial.on_gpu or trial.is_command or not all(name in record.counters for name in names):
        return None
    parts_s = dict(zip(HOST_PARTS, ((record.number(name) or 0.0) for name in names), strict=True))
    passes_s = {part: parts_s[part] / micro_batches for part in ("forward", "backward")}
    return {**parts_s, **passes_s}


def _waits_for_host(record: RankRecord, mean_s: float, micro_batches: int) -> bool:
    """Whether the GPU would be done with a step before the host has issued it."""
    return AT_GPU_PACE in record.counters and _profiled_s(record, micro_batches) < _WAITING * mean_s


def _scaled_parts(record: RankRecord, step_s: float | None, micro_batches: int) -> dict[str, float]:
    """The parts of the profiled steps, of a step that takes so long; None leaves them as they are."""
    whole_s = _profiled_s(record, micro_batches)
    factor = 1.0 if step_s is None else step_s / whole_s if whole_s > 0.0 else 0.0
    return {part: part_s * factor for part, part_s in _profiled_parts(record).items()}


def _profiled_parts(record: RankRecord) -> dict[str, float]:
    return {part: (record.number(f"profile/{part}_s") or 0.0) for part in HOST_PARTS}


def _profiled_s(record: RankRecord, micro_batches: int) -> float:
    return _sum_of(_profiled_parts(record), micro_batches) + (record.number("profile/rest_s") or 0.0)


def _sum_of(parts_s: Mapping[str, float], micro_batches: int) -> float:
    passes_s = parts_s["forward"] + parts_s["backward"]
    return parts_s["input"] + micro_batches * passes_s + parts_s["optimizer"]


def _gradients(
    launches: Sequence[Mapping[int, tuple[int, float]]], backward_s: float
) -> tuple[Gradient, ...]:
    """Means over the launches, of the gradients that came in all of them, in the order of their times."""
    parameters = set.intersection(*(set(gradients) for gradients in launches))
    gradients = [
        Gradient(
            size_bytes=launches[0][parameter][0],
            ready_s=backward_s * statistics.fmean(launch[parameter][1] for launch in launches),
        )
        for parameter in sorted(parameters)
    ]
    return tuple(sorted(gradients, key=lambda gradient: gradient.ready_s))


def _units(launches: Sequence[Sequence[Unit]], forward_s: float, backward_s: float) -> tuple[Unit, ...]:
    """Means over the launches; none where launches have different units."""
    if len({tuple(unit.name for unit in units) for units in launches}) > 1:
        return ()
    return tuple(
        Unit(
            name=same[0].name,
            parameter_bytes=same[0].parameter_bytes,
            forward_s=forward_s * statistics.fmean(unit.forward_s for unit in same),
            backward_s=backward_s * statistics.fmean(unit.backward_s for unit in same),
            activation_bytes=same[0].activation_bytes,
        )
        for same in zip(*launches, strict=True)
    )


def _spread(times_s: Sequence[float]) -> float:
    """The standard deviation of most steps ÷ their mean; a few very long ones are not the usual spread."""
    cut = round(_CUT * len(times_s))
    kept = sorted(times_s)[cut : len(times_s) - cut]
    return statistics.stdev(kept) / statistics.fmean(kept) if len(kept) > 1 else 0.0


def _buffer_bytes(record: RankRecord) -> int:
    name = "buffer_bytes" if "buffer_bytes" in record.counters else "profile/buffer_bytes"  # of a command
    return record.whole(name) or 0


def _share(part_s: float | int | str | None, whole_s: float) -> float:
    return float(part_s or 0.0) / whole_s if whole_s > 0.0 else 0.0


# ---- Batch lines: one rank's profile at another batch size, from those that were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProfile:
    """A profile at a batch size; `assumptions` says in sentences what was not measured."""

    profile: RankProfile
    assumptions: tuple[str, ...] = ()


def profile_at(profiles: Sequence[MeasuredProfile], batch_size: int) -> BatchProfile:
    """The profile of the first of these jobs with this many samples per rank and micro-batch.

    Gradients keep their bytes and their share of the backward pass; the optimizer does not depend on samples.
    """
    if not profiles:
        raise BadInput("the run has no profile of one rank; scalescope train and scale record one")
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
        return (f"step time is proportional to the batch: only {least} samples per rank were measured",)
    if least <= batch_size <= most:
        return ()
    return (f"step time grows with the batch outside {least} to {most} samples per rank as it does inside",)


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
