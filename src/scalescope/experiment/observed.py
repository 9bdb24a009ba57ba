"""What launches of a training command show of it: samples per step, its wrapper, its loader.

A command does not say what it works on before it runs. Its ranks count it, and from the launches of a run
follows whether each rank brings samples of its own (weak scaling) or all share the same (strong scaling).
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.experiment.trial import Trial

_SETTINGS = (
    "observed_batch_size",
    "observed_global_batch_size",
    "observed_unit",
    "observed_wrapper",
    "observed_loader",
)
_SAME = 0.05  # counts that differ by less are the same: the last batch of an epoch may be smaller
_ANY = 0  # the world size of facts that hold for all of them
# What decides which words a command is started with, besides the number of ranks, and what is counted.
_JOB = ("command", "vary", "batch_size", "global_batch_size", "samples_per_step", "step_at")

Counters = Mapping[str, Any]
Job = tuple[str, ...]
Observations = Mapping[Job, Mapping[int, Mapping[str, Any]]]  # observed settings by job and world size


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLaunch:
    """A launch of a command that ended well: its trial, and what each of its ranks counted."""

    trial: Trial
    ranks: Sequence[Counters]

    @property
    def samples_per_rank(self) -> float | None:
        """Samples of a step, the mean over the ranks; None where a rank could not count them."""
        shares = [_samples(self.trial, counters) for counters in self.ranks]
        known = [share for share in shares if share is not None]
        return statistics.fmean(known) if known and len(known) == len(shares) else None

    def values(self, name: str) -> list[Any]:
        """What the ranks observed under that name, where they did."""
        return [value for counters in self.ranks if (value := counters.get(f"observed/{name}")) is not None]


def observations(launches: Iterable[ObservedLaunch]) -> Observations:
    """The observed settings of every job that was launched, by world size."""
    jobs: dict[Job, list[ObservedLaunch]] = {}
    for launch in launches:
        jobs.setdefault(job_of(launch.trial), []).append(launch)
    return {job: _of_job(members) for job, members in jobs.items()}


def as_observed(trial: Trial, observed: Observations) -> Trial:
    """The trial with what launches of its job showed; its id stays."""
    by_ranks = observed.get(job_of(trial), {})
    facts = by_ranks.get(trial.world_size) or by_ranks.get(_ANY, {})
    return without_observations(trial).replace(**facts)


def without_observations(trial: Trial) -> Trial:
    """The trial as it was asked for."""
    return trial.replace(**dict.fromkeys(name for name in _SETTINGS if trial.has_setting(name)))


def job_of(trial: Trial) -> Job:
    """Equal for trials that start the same command with the same values, on any number of ranks."""
    return tuple(repr(trial.settings.get(name)) for name in _JOB)


def _of_job(launches: Sequence[ObservedLaunch]) -> dict[int, dict[str, Any]]:
    """The facts of one job by world size; those of `_ANY` are for world sizes without a launch."""
    shared = {
        "observed_unit": _most_common(launches, "unit"),
        "observed_wrapper": _wrapper(launches),
        "observed_loader": _has_loader(launches),
    }
    batches = _batches(launches)
    sizes = {launch.trial.world_size for launch in launches} | {_ANY}
    return {size: {**shared, **batches.get(size, batches.get(_ANY, {}))} for size in sizes}


def _batches(launches: Sequence[ObservedLaunch]) -> dict[int, dict[str, int]]:
    """The batch by world size: the same per rank (weak), the same in all (strong), or of each its own."""
    per_rank = _samples_by_world_size(launches)
    if not per_rank:
        return {}
    in_all = {ranks: ranks * samples for ranks, samples in per_rank.items()}
    is_shared = any(launch.trial.settings.get("global_batch_size") is not None for launch in launches)
    if _are_same(in_all.values()) and (is_shared or (len(in_all) > 1 and not _are_same(per_rank.values()))):
        return {_ANY: {"observed_global_batch_size": _whole(in_all.values())}}
    if _are_same(per_rank.values()):
        return {_ANY: {"observed_batch_size": _whole(per_rank.values())}}
    return {ranks: {"observed_batch_size": _whole([samples])} for ranks, samples in per_rank.items()}


def _samples_by_world_size(launches: Sequence[ObservedLaunch]) -> dict[int, float]:
    """Samples per rank and step, the median of the launches; world sizes without a count are left out."""
    counted: dict[int, list[float]] = {}
    for launch in launches:
        samples = launch.samples_per_rank
        if samples is not None and samples > 0.0:
            counted.setdefault(launch.trial.world_size, []).append(samples)
    return {ranks: statistics.median(samples) for ranks, samples in counted.items()}


def _samples(trial: Trial, counters: Counters) -> float | None:
    """Samples of one rank in a step: as the user says, or as the rank counted them."""
    given = trial.settings.get("samples_per_step")
    if given is not None:
        return float(given)
    samples, steps = counters.get("measured_samples"), counters.get("measured_steps")
    return float(samples) / float(steps) if samples is not None and steps else None


def _are_same(counts: Iterable[float]) -> bool:
    known = list(counts)
    return math.isclose(min(known), max(known), rel_tol=_SAME)


def _whole(counts: Iterable[float]) -> int:
    return max(1, round(statistics.median(counts)))


def _wrapper(launches: Sequence[ObservedLaunch]) -> str | None:
    """What wraps the model where most ranks took part: on one rank a script may go without."""
    most = max(launch.trial.world_size for launch in launches)
    return _most_common([launch for launch in launches if launch.trial.world_size == most], "wrapper")


def _has_loader(launches: Sequence[ObservedLaunch]) -> bool | None:
    values = [value for launch in launches for value in launch.values("loader")]
    return any(values) if values else None


def _most_common(launches: Sequence[ObservedLaunch], name: str) -> str | None:
    values = Counter(str(value) for launch in launches for value in launch.values(name))
    return values.most_common(1)[0][0] if values else None
