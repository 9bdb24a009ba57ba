"""Which jobs of a run can be predicted, and what of them is known."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.analysis.prediction.collective_times import CollectiveTimes, MeasuredTimes, measured_times
from scalescope.analysis.prediction.profiles import MeasuredProfile, profile_at, profiles_of
from scalescope.analysis.prediction.setup import ON_ONE_NODE, Fitted, RankLayout, Setup, setup_of
from scalescope.analysis.prediction.simulation import fitted_of
from scalescope.catalog import cards
from scalescope.errors import BadInput
from scalescope.experiment.expand import defaults_of
from scalescope.experiment.explanations import BATCH, LENGTH, SPREAD, job_key, strategy_settings
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run

# ---- Predicted jobs: what of a run can be predicted, and for which setups


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
        """Batches per rank and micro-batch that have profiles."""
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
        """The job's own settings on this many ranks."""
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


# ---- Inputs: everything that predictions for a run stand on


PROFILE, TIMES = "a profile of one rank", "times of collectives"


class MissingInput(BadInput):
    """Predictions need what a run does not have."""

    def __init__(self, message: str, missing: str) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, kw_only=True)
class JobInputs:
    """One job with the times of its collectives, and what several ranks showed."""

    run: Run
    job: PredictedJob
    times: CollectiveTimes
    layout: RankLayout = ON_ONE_NODE  # where nothing else is asked for
    run_times: MeasuredTimes | None = None  # of the network that its ranks used
    fit_from: "JobInputs | None" = None  # where another strategy or network is tried

    @property
    def machine(self) -> str:
        """Where the job was measured."""
        return next((result.environment_id for result in self.run.results), "")

    @functools.cached_property
    def _fits(self) -> dict[tuple[str, int], Fitted]:
        return {}

    def fitted(self, measured: MeasuredProfile) -> Fitted:
        """What the run's launches on several ranks show; over another network only contention."""
        if self.fit_from is not None:
            return self.fit_from.fitted(measured)
        key = measured.trial.trial_id, measured.profile.samples
        if key not in self._fits:
            fitted = fitted_of(self.run, measured, self.run_times or self.times)
            if self.run_times is not self.times:
                fitted = Fitted(contention=fitted.contention, from_launches=fitted.from_launches)
            self._fits[key] = fitted
        return self._fits[key]

    def as_measured(self) -> "JobInputs | None":
        """With the run's own network and settings; None where it has measured no collectives."""
        own = self.fit_from or self
        if own.run_times is None or own.times is own.run_times:
            return None if own.run_times is None else own
        return dataclasses.replace(own, times=own.run_times, layout=_layout(own.run, own.job.trial))

    def changed(
        self, *, job: PredictedJob | None = None, times: CollectiveTimes | None = None
    ) -> "JobInputs":
        """Another strategy, or a faster network; what the ranks of the run showed still counts."""
        return dataclasses.replace(
            self, job=job or self.job, times=times or self.times, fit_from=self.fit_from or self
        )

    def before(self, ranks: int) -> "JobInputs | None":
        """The times without any measurement on this many ranks or more; None without times."""
        times = None if self.run_times is None else self.run_times.up_to(ranks - 1)
        if times is None:
            return None
        return dataclasses.replace(self, run=_before(self.run, ranks), times=times, run_times=times)

    def unmeasured(self, ranks: int) -> "JobInputs":
        """The times if only collectives, and no training, had been measured on this many ranks."""
        return dataclasses.replace(self, run=_before(self.run, ranks))


def inputs_of(run: Run, network: CollectiveTimes | None = None) -> tuple[JobInputs, ...]:
    """The jobs that can be predicted; MissingInput says what is missing where none can.

    `network` replaces the times of collectives that the run has measured.
    """
    profiles = profiles_of(run)
    if not profiles:
        measuring = _measuring_command(run)
        raise MissingInput(f"{run.path} has no profile of one rank: {measuring} measures it", PROFILE)
    inputs = []
    for job in predicted_jobs(run.results, profiles):
        run_times = measured_times(run.results, job.trial.link)
        times = network or run_times
        layout = ON_ONE_NODE if network is not None else _layout(run, job.trial)
        if times is not None:
            inputs.append(JobInputs(run=run, job=job, times=times, layout=layout, run_times=run_times))
    if not inputs:
        raise MissingInput(
            f"{run.path} has no times of collectives: --network nvlink4 assumes them, "
            "scalescope comm measures them",
            TIMES,
        )
    return tuple(inputs)


def _layout(run: Run, trial: Trial) -> RankLayout:
    """Ranks beyond those that a node has room for are on other nodes, between which nothing was measured.

    Between several nodes, or over an emulated link, everything was.
    """
    hosts = {record.host for result in run.results for record in result.ranks}
    if trial.link or len(hosts) > 1:
        return ON_ONE_NODE
    cores = None if trial.on_gpu else _cores_of_a_node(run)
    return RankLayout(ranks_per_node=_room_of_a_node(run, trial), cores_per_node=cores)


def _cores_of_a_node(run: Run) -> int | None:
    cores = (run.environment.get("machine") or {}).get("cores")
    return cores if isinstance(cores, int) and cores > 0 else None


def _room_of_a_node(run: Run, trial: Trial) -> int | None:
    """How many ranks of a trial's kind a node has room for; None where the machine is not recorded."""
    if trial.split_gpu:
        return trial.split_gpu
    machine = run.environment.get("machine") or {}
    per_node = machine.get("ranks_per_node")
    if isinstance(per_node, int):  # of several nodes, whose GPUs are listed together
        return per_node
    if trial.on_gpu:
        gpus = machine.get("gpus")
        return len(gpus) if isinstance(gpus, list) else None
    cores = _cores_of_a_node(run)
    return None if cores is None else max(cores, trial.world_size)


def _measuring_command(run: Run) -> str:
    """A verb that records the profile, with what makes it one of this run's job."""
    trial = next((result.trial for result in run.results if result.trial.is_training), None)
    if trial is None or trial.is_command:
        return "scalescope train --world-size 1"
    return f"scalescope train --workload {trial.workload} --world-size 1"


def _before(run: Run, ranks: int) -> Run:
    """The run without training on this many ranks or more."""
    kept = tuple(
        result for result in run.results if not result.trial.has_strategy or result.trial.world_size < ranks
    )
    return dataclasses.replace(run, results=kept)
