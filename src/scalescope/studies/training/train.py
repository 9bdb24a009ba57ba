"""`train`: one configuration (or a sweep of them), measured and summarised."""

import dataclasses

from scalescope.experiment.expand import expand
from scalescope.launch.launcher import Launcher
from scalescope.report.section import Section
from scalescope.report.trace.sections import profile_sections
from scalescope.report.training.sections import next_after_training, training_sections
from scalescope.results.files import write_atomically
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, run_study
from scalescope.studies.trace.profiling import NSYS_SCRIPT, Profiling, nsys_command, nsys_script, run_nsys

DEFAULTS = {"repeats": 1, "window": 10.0}


def train(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    most_ranks: int | None = None,
    profiling: Profiling | None = None,
) -> StudyReport:
    """Measure what was asked, and record it by itself where a profile is wanted.

    `most_ranks` is the default world size, all ranks there are when attached.
    """
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
        once=() if profiling is None else profiling.trials(expansion.trials),
    )
    report = run_study(request, plan, launcher, watcher, _sections, next_after_training)
    if profiling is None or not profiling.nsys or report.path is None:
        return report
    ranks = max(trial.world_size for trial in expansion.trials)
    return _with_nsys(report, nsys_command(report.path, profiling, ranks), run=launcher.repeatable)


def _sections(run: Run) -> tuple[Section, ...]:
    return (*training_sections(run), *profile_sections(run))


def _with_nsys(report: StudyReport, command: list[str], *, run: bool) -> StudyReport:
    """Write the command for Nsight Systems, and run it where it exists, but not from ranks."""
    assert report.path is not None
    script = report.path / NSYS_SCRIPT
    script.parent.mkdir(exist_ok=True)
    write_atomically(script, nsys_script(command))
    ended = run_nsys(command) if run else "not run by ranks of another launcher"
    line = f"Nsight Systems: {script}: {ended}."
    return dataclasses.replace(report, sections=(*report.sections, Section(lines=(line,))))
