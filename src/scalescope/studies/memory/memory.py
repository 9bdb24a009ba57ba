"""`memory`: what training holds at several batches, and the largest batch that fits."""

import math

from scalescope.analysis.memory.groups import memory_groups
from scalescope.analysis.memory.rows import memory_job
from scalescope.catalog import cards
from scalescope.catalog.benchmarks.memory import BATCHES
from scalescope.catalog.workloads.custom import Custom
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.memory.sections import memory_sections
from scalescope.report.memory.verdict import next_after_memory
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, run_study

DEFAULTS = {"repeats": 1}
_LEAST_TO_NORMALISE = 2  # over the batch: a single sample has no spread


def memory(
    request: Request, launcher: Launcher, watcher: CampaignWatcher, most_ranks: int | None = None
) -> StudyReport:
    """Measure the batches, then look for the largest; `most_ranks` is the default world size."""
    experiment = request.experiment(DEFAULTS)
    if "world_size" not in experiment.settings:
        experiment = experiment.with_settings(world_size=(most_ranks or 1,))
    machine = launcher.machine()
    expansion = expand(_with_small_batches(experiment), machine, many=request.yes)
    plan = Plan(
        experiment=expansion.experiment,
        trials=with_one_forecaster(expansion.trials),
        machine=machine,
        notes=expansion.notes,
    )
    return run_study(
        request,
        plan,
        launcher,
        watcher,
        memory_sections,
        next_after_memory,
        more=lambda run: tuple((trial, 0) for trial in tries_worth_making(run)),
    )


def _with_small_batches(experiment: Experiment) -> Experiment:
    """Batches where none were asked for; a pipeline needs a sample for each rank, or each microbatch.

    One's own data may come in batches of one size, and one's own model may refuse the smallest.
    """
    settings = experiment.settings
    own = any(cards.card("workloads", name) is Custom for name in settings.get("workload", ()))
    if own or {"batch_size", "global_batch_size"} & set(settings):
        return experiment
    least = 1
    if "pipeline" in settings.get("strategy", ()):
        least = math.lcm(*settings["world_size"], *filter(None, settings.get("microbatches", ())))
    return experiment.with_settings(batch_size=tuple(least * batch for batch in BATCHES))


def with_one_forecaster(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Only one batch of each job forecasts larger batches and other ways to train: they are the same for all.

    That is a small one, which hardly runs out of memory, but not one sample, which some models refuse.
    """
    jobs: dict[str, list[Trial]] = {}
    for trial in trials:
        jobs.setdefault(memory_job(trial), []).append(trial)
    chosen = {
        min(job, key=lambda one: (one.micro_batch_size < _LEAST_TO_NORMALISE, one.micro_batch_size)).trial_id
        for job in jobs.values()
    }
    return tuple(one if one.trial_id in chosen else one.replace(purpose="compare") for one in trials)


def tries_worth_making(run: Run) -> tuple[Trial, ...]:
    """For every job, the one launch that says most about its largest batch."""
    tries = [group.next_try() for group in memory_groups(run)]
    return tuple(trial for trial in tries if trial is not None)
