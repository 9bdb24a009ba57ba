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
    "observed_replicas",
)
_SAME = 0.05  # counts that differ by less are the same: the last batch of an epoch may be smaller
_SHARING = ("averaging_ranks", "cut_ranks", "input_hash", "sends")
_ANY = 0  # the world size of facts that hold for all of them
# What decides which words a command is started with, besides the number of ranks, and what is counted.
_JOB = ("command", "vary", "batch_size", "global_batch_size", "samples_per_step", "step_at")

Counters = Mapping[str, Any]
Job = tuple[str, ...]
Observations = Mapping[Job, Mapping[int, Mapping[str, Any]]]  # observed settings by job and world size


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLaunch:
    """A successful launch of a command: its trial, and what each of its ranks counted."""

    trial: Trial
    ranks: Sequence[Counters]

    @property
    def samples_per_replica(self) -> float | None:
        """Samples of a step, the mean over the ranks; None where a rank could not count them, or who shares
        them is not known."""
        shares = [_samples(self.trial, counters) for counters in self.ranks]
        known = [share for share in shares if share is not None]
        if self.replicas is None or not known or len(known) < len(shares):
            return None
        return statistics.fmean(known)

    @property
    def replicas(self) -> int | None:
        """How many parts of the ranks work on samples of their own; None is unknown."""
        is_given = self.trial.settings.get("samples_per_step") is not None
        return self.trial.world_size if is_given else replicas_of(self.ranks)

    def values(self, name: str) -> list[Any]:
        """What the ranks observed under that name, where they did."""
        return [value for counters in self.ranks if (value := counters.get(f"observed/{name}")) is not None]


def replicas_of(ranks: Sequence[Counters]) -> int | None:
    """How many parts of a launch's ranks work on samples of their own; None where that is not known.

    What averages gradients over ranks says it. Else ranks among which parameters are cut share their input;
    ranks that do not, and all receive other inputs, are replicas. Where ranks send to each other, as stages
    of a pipeline do, what a rank's model receives says nothing about samples.
    """
    world_size = len(ranks)
    facts = [{name: counters.get(f"observed/{name}") for name in _SHARING} for counters in ranks]
    if world_size == 1 or all("observed/sends" not in counters for counters in ranks):  # of earlier versions
        return world_size
    if any(fact["sends"] for fact in facts):
        return None
    averaging, cut = ({fact[name] for fact in facts} for name in ("averaging_ranks", "cut_ranks"))
    if len(averaging) == 1 and (size := averaging.pop()) is not None:
        return int(size) if world_size % int(size) == 0 else None
    hashes = Counter(fact["input_hash"] for fact in facts)
    if None in hashes or len(cut) != 1:
        return None
    together = int(cut.pop() or 1)
    return world_size // together if set(hashes.values()) == {together} else None


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
    batches, replicas = _batches(launches), _replicas(launches)
    sizes = {launch.trial.world_size for launch in launches} | {_ANY}
    return {
        size: {**shared, **batches.get(size, batches.get(_ANY, {})), "observed_replicas": replicas.get(size)}
        for size in sizes
    }


def _replicas(launches: Sequence[ObservedLaunch]) -> dict[int, int]:
    """By world size, where ranks share their batch."""
    counted: dict[int, Counter[int]] = {}
    for launch in launches:
        if launch.replicas is not None:
            counted.setdefault(launch.trial.world_size, Counter())[launch.replicas] += 1
    usual = {ranks: counts.most_common(1)[0][0] for ranks, counts in counted.items()}
    return {ranks: replicas for ranks, replicas in usual.items() if replicas < ranks}


def _batches(launches: Sequence[ObservedLaunch]) -> dict[int, dict[str, int]]:
    """The batch by world size: the same per rank (weak), the same in all (strong), or of each its own."""
    of_replica = _samples_by_world_size(launches)
    if not of_replica:
        return {}
    replicas = {ranks: ranks for ranks in of_replica} | _replicas(launches)
    in_all = {ranks: replicas[ranks] * samples for ranks, samples in of_replica.items()}
    per_rank = {ranks: samples / ranks for ranks, samples in in_all.items()}
    is_given = any(launch.trial.settings.get("global_batch_size") is not None for launch in launches)
    if _are_same(in_all.values()) and (is_given or (len(in_all) > 1 and not _are_same(per_rank.values()))):
        return {_ANY: {"observed_global_batch_size": _whole(in_all.values())}}
    if _are_same(of_replica.values()):
        return {_ANY: {"observed_batch_size": _whole(of_replica.values())}}
    return {ranks: {"observed_batch_size": _whole([samples])} for ranks, samples in of_replica.items()}


def _samples_by_world_size(launches: Sequence[ObservedLaunch]) -> dict[int, float]:
    """Samples per replica and step, the median of the launches; world sizes without a count are left out."""
    counted: dict[int, list[float]] = {}
    for launch in launches:
        samples = launch.samples_per_replica
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
