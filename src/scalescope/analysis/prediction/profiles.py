"""Profiles of a stored run: what launches of one rank recorded about their steps, launch by launch joined."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.profile import Gradient, RankProfile, Unit
from scalescope.experiment.trial import Trial
from scalescope.results.result import AT_GPU_PACE, HOST_PARTS, ROOT_UNIT, RankRecord, Result, undisturbed
from scalescope.results.run import Run

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
