"""Inputs: everything that predictions for a run stand on."""

import dataclasses
import functools
from dataclasses import dataclass

from scalescope.analysis.prediction.fitting import fitted_of
from scalescope.analysis.prediction.jobs import PredictedJob, predicted_jobs
from scalescope.analysis.prediction.measured_times import MeasuredTimes, measured_times
from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.analysis.prediction.profiles import MeasuredProfile, profiles_of
from scalescope.analysis.prediction.setup import ON_ONE_NODE, RankLayout
from scalescope.analysis.prediction.timeline import Fitted
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run

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
        """As they would be had nothing been measured on so many ranks or more; None without times."""
        times = None if self.run_times is None else self.run_times.up_to(ranks - 1)
        if times is None:
            return None
        return dataclasses.replace(self, run=_before(self.run, ranks), times=times, run_times=times)

    def unmeasured(self, ranks: int) -> "JobInputs":
        """As they would be had only collectives been measured on so many ranks, and no training."""
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
    """The run without training on so many ranks or more."""
    kept = tuple(
        result for result in run.results if not result.trial.has_strategy or result.trial.world_size < ranks
    )
    return dataclasses.replace(run, results=kept)
