"""`tune`: which setting helps, really: one by one, then together, each claim measured."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.tuning.ledger import MOST_LAUNCHES
from scalescope.errors import BadInput
from scalescope.experiment.emulation import emulation_notes
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.launch.launcher import Launcher
from scalescope.report.machine import format_lines
from scalescope.report.section import Section
from scalescope.report.tuning.plan import left_out_section, plan_of_tuning
from scalescope.report.tuning.sections import next_after_tuning, tuning_sections
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.estimate import estimate_s
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, run_study
from scalescope.studies.tuning.levers import Levers, find_levers
from scalescope.studies.tuning.search import TUNED, Search
from scalescope.studies.tuning.tune_once import for_running_ranks, tune_once

DEFAULTS = {"repeats": 5, "budget": 600.0, "window": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a person asks of `tune` besides the configuration."""

    levers: tuple[str, ...] = ("all",)
    threshold: float = 0.03
    combine: bool = False


def tune(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    most_ranks: int | None = None,
    options: TuneOptions | None = None,
) -> StudyReport:
    """Try the levers around one configuration, within the budget.

    `most_ranks` is the default world size, all ranks there are when attached.
    """
    options = options or TuneOptions()
    if options.combine and not launcher.repeatable:
        raise BadInput("--combine needs launches of its own; run it without torchrun or srun")
    machine = launcher.machine()
    experiment = _asked(request, launcher, most_ranks)
    levers = find_levers(experiment, machine, options.levers)
    if not launcher.repeatable:
        levers = for_running_ranks(levers, launcher)
    if not levers.candidates:
        why = "; ".join(f"{one.text}: {one.reason}" for one in levers.inapplicable)
        raise BadInput(f"--levers: nothing is left to try here; {why}")
    trials = (levers.baseline, *(candidate.trial for candidate in levers.candidates))
    notes = emulation_notes(trials, machine)
    if request.dry_run:
        for note in notes:
            watcher.noted(note)
        return StudyReport(sections=_plan_of(levers, experiment, machine))
    if not launcher.repeatable:
        return tune_once(request, launcher, watcher, experiment, levers, options.threshold)
    search = Search(experiment, machine, levers, threshold=options.threshold, combine=options.combine)
    expansion = expand(experiment, machine)
    plan = Plan(
        experiment=expansion.experiment,
        trials=trials,
        machine=machine,
        notes=tuple(dict.fromkeys((*expansion.notes, *notes))),
        chosen=(),
    )
    return run_study(
        request,
        plan,
        launcher,
        watcher,
        lambda run: tuning_sections(search.read(run)),
        lambda run: next_after_tuning(search.read(run), run.path / TUNED),
        search.files,
        more=search.more,
        heard=search.heard(watcher),
        answers=lambda result: result.trial_id != levers.baseline.trial_id,
    )


def _asked(request: Request, launcher: Launcher, most_ranks: int | None) -> Experiment:
    """The request with what the launcher decides: how many ranks there are, and whether launches repeat."""
    experiment = request.experiment(DEFAULTS)
    if experiment.measuring.repeats > MOST_LAUNCHES:
        raise BadInput(f"--repeats: tune makes at most {MOST_LAUNCHES} launches of one kind")
    if "world_size" not in experiment.settings:
        experiment = experiment.with_settings(world_size=(most_ranks or 1,))
    if launcher.repeatable:
        return experiment
    return dataclasses.replace(experiment, measuring=dataclasses.replace(experiment.measuring, repeats=1))


def _plan_of(levers: Levers, experiment: Experiment, machine: Machine) -> tuple[Section, ...]:
    """What would be tried and what not; how often each is launched is decided on the way."""
    repeats = experiment.measuring.repeats
    seconds = estimate_s((levers.baseline, *(candidate.trial for candidate in levers.candidates)), repeats)
    changes = [(candidate.text, candidate.changes) for candidate in levers.candidates]
    budget_s, formats = experiment.measuring.budget, format_lines(machine, (levers.baseline,))
    planned = plan_of_tuning(levers.baseline, changes, repeats, seconds, budget_s, formats)
    return (planned, *left_out_section([(one.text, one.reason) for one in levers.inapplicable]))


def levers_from(words: Sequence[str]) -> tuple[str, ...]:
    """The names of --levers, as typed with commas."""
    names = tuple(name.strip() for word in words for name in word.split(",") if name.strip())
    if not names:
        raise BadInput("--levers: name some, or all")
    return names
