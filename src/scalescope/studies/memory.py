"""`memory`: what training holds at several batches, and the largest batch that fits."""

from scalescope.analysis.memory import memory_groups
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.memory import memory_sections, next_after_memory
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, carry_out

DEFAULTS = {"repeats": 1}
BATCHES = (1, 2, 4, 8)


def memory(
    request: Request, launcher: Launcher, watcher: CampaignWatcher, most_ranks: int | None = None
) -> StudyReport:
    """Measure the batches, then look for the largest; `most_ranks` is the default world size."""
    experiment = with_small_batches(request.experiment(DEFAULTS))
    if "world_size" not in experiment.settings:
        experiment = experiment.with_settings(world_size=(most_ranks or 1,))
    machine = launcher.machine()
    expansion = expand(experiment, machine, many=request.yes)
    plan = Plan(
        experiment=expansion.experiment,
        trials=expansion.trials,
        machine=machine,
        notes=expansion.notes,
    )
    return carry_out(
        request, plan, launcher, watcher, memory_sections, next_after_memory, more=tries_worth_making
    )


def with_small_batches(experiment: Experiment) -> Experiment:
    """Small batches tell as much about memory as large ones do, and sooner."""
    if {"batch_size", "global_batch_size"} & set(experiment.settings):
        return experiment
    return experiment.with_settings(batch_size=BATCHES)


def tries_worth_making(run: Run) -> tuple[Trial, ...]:
    """For every job, the one launch that says most about its largest batch."""
    tries = [group.next_try() for group in memory_groups(run)]
    return tuple(trial for trial in tries if trial is not None)
