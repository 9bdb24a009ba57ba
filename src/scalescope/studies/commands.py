"""Planning of training commands."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from scalescope.errors import BadInput
from scalescope.experiment.command_line import COMMAND, can_be_filled, takes_world_size
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import NO_COMM, Phase, has_ablation, only_explains, timed_training_of
from scalescope.experiment.observed import as_observed, without_observations
from scalescope.experiment.trial import Trial
from scalescope.results.run_folder import EXPERIMENT
from scalescope.studies.plan import Launch
from scalescope.studies.study import Study

if TYPE_CHECKING:
    from scalescope.results.run import Run

_KEEP_RUNNING = "--keep-running changes nothing in the command and measures one window of it"
NEEDS_WORLD_SIZE = (
    "One world size: to see how the command scales, write {world_size} in it, for instance "
    "--nproc-per-node={world_size}."
)
NO_MEMORY = "Memory is not measured: that requires a built-in workload, or yours as FILE.py:FUNCTION."


def has_world_size(experiment: Experiment) -> bool:
    """Whether the number of ranks is a value that the command takes."""
    return takes_world_size(str(experiment.asked(COMMAND)[0]))


def keeps_running(experiment: Experiment) -> bool:
    """Whether the command is to go on after it was measured."""
    return any(experiment.asked("keep_running"))


def check_keep_running(experiment: Experiment) -> Experiment:
    """The request of a command that goes on afterwards: launched once; refuses what compares launches."""
    if not keeps_running(experiment):
        return experiment
    if experiment.verb == "tune":
        raise BadInput(f"--keep-running cannot be used with tune: {_KEEP_RUNNING}")
    if len(experiment.asked("world_size", 1)) > 1:
        raise BadInput(f"--keep-running takes one --world-size: {_KEEP_RUNNING}")
    return dataclasses.replace(experiment, measuring=dataclasses.replace(experiment.measuring, repeats=1))


Explanations = Callable[[tuple[Trial, ...]], Iterable[Trial]]


def _nothing(asked: tuple[Trial, ...]) -> tuple[Trial, ...]:
    return ()


def remaining_launches(
    study: Study, run: "Run", explanations: Explanations, once: Explanations = _nothing
) -> tuple[Launch, ...]:
    """All launches of a command, with those that explain it by what its first ones showed.

    Only a rank that ran shows what wraps the model and what feeds it. `explanations` adds the trials to those
    that were asked for; `once` are launched a single time.
    """
    from scalescope.results.run import observations_of
    from scalescope.studies.request import stored_experiment
    from scalescope.studies.stored import recorded_host

    if not any(result.trial.is_command for result in run.results):
        return ()
    host = recorded_host(run.path, repeatable=run.record.repeatable, ranks=run.record.attached_ranks)
    plan = study.plan(stored_experiment(study, run.path / EXPERIMENT), host, many=True)
    if not plan.continues:
        return ()
    observed = observations_of((*run.results, *run.replaced))
    asked = tuple(as_observed(trial, observed) for trial in plan.trials if trial.is_command)
    others = (trial for trial in plan.trials if not trial.is_command)
    complete = dataclasses.replace(
        plan,
        trials=_by_id((*_launchable(explanations(asked)), *others)),
        once=_by_id(_launchable(once(asked))),
        continues=False,
    )
    return tuple(complete.launches())


def phases_of(
    asked: Sequence[Trial], explanations: Explanations, once: Explanations = _nothing
) -> dict[str, tuple[Phase, ...]]:
    """By the id of what was asked for, what explains it and its own processes can measure.

    Whether a script has a loader, and what wraps its model, is known once it runs: what follows from either
    is planned, and the ranks choose. What they cannot do gets a launch of its own.
    """
    jobs = {_job_id(trial): trial.trial_id for trial in asked}
    found: dict[str, dict[str, Phase]] = {trial.trial_id: {} for trial in asked}
    for has_loader in (True, False):
        seen = tuple(trial.replace(observed_loader=has_loader, observed_wrapper="ddp") for trial in asked)
        single = {trial.trial_id for trial in once(seen)}
        for trial in (*explanations(seen), *once(seen)):
            job = jobs.get(_job_id(trial))
            if job is None or not trial.is_command or not only_explains(trial):
                continue
            known = found[job].get(trial.trial_id)
            found[job][trial.trial_id] = Phase(
                trial=without_observations(trial),
                needs_loader=has_loader if known is None else None,
                once=trial.trial_id in single,
            )
    return {job: tuple(sorted(phases.values(), key=_order)) for job, phases in found.items()}


def _order(phase: Phase) -> tuple[bool, bool]:
    """What cannot be taken back comes last, and before it what leaves a profiler behind."""
    return has_ablation(phase.trial, NO_COMM), not phase.trial.is_training


def _job_id(trial: Trial) -> str:
    """Equal for trials of the same job, whatever is removed from it, recorded or timed."""
    plain = timed_training_of(without_observations(trial))
    return plain.replace(window=None, **dict.fromkeys(plain.ablations, False)).trial_id


def _launchable(trials: Iterable[Trial]) -> Iterable[Trial]:
    """Trials that a command can be launched for, as they were asked for: it may not take every batch."""
    return map(without_observations, filter(can_be_filled, trials))


def _by_id(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    return tuple({trial.trial_id: trial for trial in trials}.values())


def launchable(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The launches without those of commands that do not take their batch."""
    return tuple(
        dataclasses.replace(launch, trial=without_observations(launch.trial))
        if launch.trial.is_command
        else launch
        for launch in launches
        if not launch.trial.is_command or can_be_filled(launch.trial)
    )
