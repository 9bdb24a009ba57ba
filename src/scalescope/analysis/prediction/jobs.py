"""Predicted jobs: what of a run can be predicted, and for which setups."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.batch_lines import profile_at
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.analysis.prediction.setup import ON_ONE_NODE, RankLayout, Setup
from scalescope.analysis.prediction.trial_setup import setup_of
from scalescope.catalog import cards
from scalescope.experiment.expand import defaults_of
from scalescope.experiment.same_job import BATCH, LENGTH, SPREAD, job_key, strategy_settings
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

_ON_OTHER_RANKS = frozenset(("world_size", "oversubscribe", "stand_in"))


@dataclass(frozen=True, slots=True)
class JobProfile:
    """One rank's profile at a batch, and what was not measured of it."""

    measured: MeasuredProfile  # its trial has the nearest batch
    nearest: MeasuredProfile  # at the nearest batch that was measured
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PredictedJob:
    """A job of a run: how it is spread over ranks, and what one rank's step consists of at each batch."""

    trial: Trial  # on the most ranks that were measured; its strategy and settings are predicted
    profiles: tuple[MeasuredProfile, ...]
    measured: Mapping[int, str]  # trial ids of the same job by number of ranks, beyond one

    @functools.cached_property
    def is_strong(self) -> bool:
        """Whether more ranks share the same samples."""
        return self.trial.mode == "strong"

    def samples(self, setup: Setup) -> int:
        """Samples of one rank and micro-batch."""
        trial = self.trial.replace(world_size=setup.world_size)
        if setup.strategy == "pipeline":
            return max(1, trial.rank_batch_size // setup.micro_batches)
        if trial.global_batch_size is not None:
            return max(1, trial.global_batch_size // setup.world_size // setup.accumulation_steps)
        return trial.batch_size or trial.micro_batch_size

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches per rank and micro-batch of which there are profiles."""
        return tuple(sorted({known.profile.samples for known in self.profiles}))

    def profile(self, setup: Setup, batch: int | None = None) -> JobProfile:
        """One rank's profile at the setup's batch, or at another one per rank."""
        candidates = _same_job(self.profiles)
        samples = self.samples(setup) if batch is None else batch
        if samples == 0:  # of a command that does not show its samples
            return JobProfile(candidates[0], candidates[0])
        at_batch = profile_at(candidates, samples)
        nearest = min(candidates, key=lambda known: abs(known.profile.samples - samples))
        memory = nearest.memory_bytes if nearest.profile.samples == samples else None
        measured = dataclasses.replace(nearest, profile=at_batch.profile, memory_bytes=memory)
        return JobProfile(measured, nearest, at_batch.assumptions)

    def setup(self, world_size: int, layout: RankLayout = ON_ONE_NODE) -> Setup:
        """The job's own settings on so many ranks."""
        return setup_of(self.trial.replace(world_size=world_size), layout)

    def with_strategy(self, strategy: str) -> "PredictedJob":
        """The same job spread by another strategy, at its default settings."""
        return dataclasses.replace(self, trial=_spread(self.trial, strategy), measured={})


def predicted_jobs(
    results: Iterable[Result], profiles: Sequence[MeasuredProfile]
) -> tuple[PredictedJob, ...]:
    """The jobs that were measured on several ranks; without any, those of the profiles, spread by DDP."""
    by_work: dict[str, list[MeasuredProfile]] = {}
    for known in profiles:
        by_work.setdefault(_work(known.trial), []).append(known)
    trials = {
        result.trial_id: result.trial
        for result in results
        if result.status == "ok" and result.trial.is_training and not result.trial.is_ablation
    }
    several = [trial for trial in trials.values() if trial.world_size > 1 and _work(trial) in by_work]
    spread = several or [_spread(known.trial, "ddp") for known in _same_job(profiles)]
    groups: dict[str, list[Trial]] = {}
    for trial in spread:
        groups.setdefault(job_key(trial, ignoring=_ON_OTHER_RANKS), []).append(trial)
    jobs = [_job(members, by_work[_work(members[0])]) for members in groups.values()]
    return tuple(sorted(jobs, key=lambda job: job.trial.given_batch_size))


def _job(members: list[Trial], profiles: list[MeasuredProfile]) -> PredictedJob:
    measured = {trial.world_size: trial.trial_id for trial in members if trial.world_size > 1}
    return PredictedJob(max(members, key=lambda trial: trial.world_size), tuple(profiles), measured)


def _work(trial: Trial) -> str:
    """What two trials must share for a profile of one to describe steps of the other; batches may differ."""
    ignored = SPREAD | strategy_settings() | BATCH | LENGTH | {"accumulation_steps"}
    return job_key(trial, ignoring=ignored)


def _same_job(profiles: Sequence[MeasuredProfile]) -> list[MeasuredProfile]:
    """Those without a wrapper, whose cost several ranks show; else those with the first one's."""
    plain = [known for known in profiles if not known.trial.is_wrapped]
    first = (plain or profiles)[0].trial
    return [known for known in plain or profiles if known.trial.strategy == first.strategy]


def _spread(trial: Trial, strategy: str) -> Trial:
    """The same job by another strategy, at its defaults; commands keep theirs."""
    if trial.is_command or trial.strategy == strategy:
        return trial
    card = cards.card("strategies", strategy)
    defaults = defaults_of(card, {"workloads": trial.workload}, trial.device)
    known = {name: value for name, value in defaults.items() if name not in trial.settings}
    return trial.replace(strategy=strategy, **known)
