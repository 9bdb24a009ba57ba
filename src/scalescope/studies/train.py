"""`train`: one configuration (or a sweep of them), measured and summarised."""

from scalescope.experiment.expand import expand
from scalescope.launch.launcher import Launcher
from scalescope.report.training import next_after_training, training_sections
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, carry_out

DEFAULTS = {"repeats": 1}


def train(
    request: Request, launcher: Launcher, watcher: CampaignWatcher, most_ranks: int | None = None
) -> StudyReport:
    """Measure what was asked; `most_ranks` is the default world size, all ranks there are when attached."""
    experiment = request.experiment(DEFAULTS)
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
    return carry_out(request, plan, launcher, watcher, training_sections, next_after_training)
