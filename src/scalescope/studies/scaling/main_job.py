"""`run`: the main job. Looks at the machine, measures how it scales, and says where everything is."""

import dataclasses

from scalescope.catalog import cards
from scalescope.catalog.setting import Setting, settings_of
from scalescope.catalog.workloads.custom import Custom
from scalescope.errors import BadInput, CannotRun, ScalescopeError
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.comm.sections import communication_brief
from scalescope.report.machine import machine_section
from scalescope.report.memory.sections import memory_brief
from scalescope.report.memory.verdict import next_after_memory
from scalescope.report.scaling.sections import next_after_scaling, scaling_sections, scaling_so_far
from scalescope.report.section import Section
from scalescope.report.training.sections import next_after_training, training_sections
from scalescope.report.trials import is_answer
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.memory.memory import with_one_forecaster
from scalescope.studies.report import PAGE, ReportOptions, report
from scalescope.studies.request import Request
from scalescope.studies.scaling.network import exchanges
from scalescope.studies.scaling.scale import only_explains, plan_scaling
from scalescope.studies.study import StudyReport, run_study

PARTS = ("comm", "training", "memory", "scaling")
DEFAULTS = {"repeats": 5, "budget": 110.0, "min_steps": 3}
_WARMUP = 5
_ROUNDS = 3  # of launches that the budget is to have room for: what an interval needs
_SHARE = 0.75  # of the budget that is planned; the rest is for machines slower than thought
_LAUNCH_S = {"cpu": 1.0, "cuda": 1.5}  # what a launch takes besides its window
_LEAST_WINDOW_S = 0.5
_BATCHES = (2, 8)  # for memory; models that normalise over the batch refuse one sample


def main_job(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    parts: tuple[str, ...] = PARTS,
    most_ranks: int | None = None,
    warmup: int | None = None,
    iters: int | None = None,
    waterfall: bool = True,
) -> StudyReport:
    """Run the parts that are asked for."""
    machine = launcher.machine()
    experiment = _with_steps(request.experiment(DEFAULTS), warmup, iters)
    everything = plan_scaling(request, experiment, launcher, most_ranks, waterfall=waterfall)
    if "window" not in experiment.settings:
        everything = _with_window(everything)
    watcher.shown((machine_section(machine, _ranks(everything)),))
    trials = _trials_of(parts, everything)
    ids = {trial.trial_id for trial in trials}
    once = tuple(trial for trial in everything.once if "scaling" in parts and trial.trial_id not in ids)
    plan = dataclasses.replace(everything, trials=trials, once=once)
    if "memory" in parts:
        plan = _with_memory(plan, everything, alone=parts == ("memory",))
    if not plan.all_trials:
        raise CannotRun(f"--benchmark {','.join(parts)}: one rank has nobody to talk to")

    def sections(run: Run) -> tuple[Section, ...]:
        training = scaling_sections(run) if "scaling" in parts else training_sections(run)
        trained = training if {"scaling", "training"} & set(parts) else ()
        return (*trained, *communication_brief(run), *memory_brief(run))

    next_step = next_after_scaling if "scaling" in parts else next_after_training
    if not {"scaling", "training", "comm"} & set(parts):
        next_step = next_after_memory

    def is_asked(result: Result) -> bool:
        """The collectives are a part of their own; pairs and what NCCL says only explain."""
        settings = result.settings
        beside = settings.get("pairs") or settings.get("purpose") == "listen"
        return "comm" in parts and settings["benchmark"] == "comm" and not beside

    found = run_study(
        request,
        plan,
        launcher,
        watcher,
        sections,
        next_step,
        answers=lambda result: is_answer(result) or (only_explains(result) and not is_asked(result)),
        verdict=scaling_so_far if "scaling" in parts else lambda run: None,
    )
    return _with_page(found, watcher)


def _with_page(study_report: StudyReport, watcher: CampaignWatcher) -> StudyReport:
    """The report of the run as a page; what is measured stands without it."""
    if study_report.path is None:
        return study_report
    try:
        report((study_report.path,), study_report.path, ReportOptions(formats=("html",)))
    except ScalescopeError as error:
        watcher.noted(f"There is no {PAGE}: {error}")
        return study_report
    return dataclasses.replace(study_report, page=study_report.path / PAGE)


def _trials_of(parts: tuple[str, ...], everything: Plan) -> tuple[Trial, ...]:
    """The trials of the chosen parts; training is a part of scaling and is not run twice."""
    trials: tuple[Trial, ...] = ()
    if "scaling" in parts:
        trials = everything.trials
    elif "training" in parts:
        trials = _training_alone(everything)
    if "comm" in parts and _ranks(everything) > 1:
        trials += _communication(everything)
    return trials


def _communication(everything: Plan) -> tuple[Trial, ...]:
    """A short all-reduce on all ranks, placed as the training ranks are."""
    most = _ranks(everything)
    return tuple(trial for trial in exchanges(everything) if trial.world_size == most)


def _with_memory(plan: Plan, everything: Plan, *, alone: bool) -> Plan:
    """The plan with a look at memory; beside other parts, one that can fail without harm."""
    if alone:
        return dataclasses.replace(plan, once=(*plan.once, *with_one_forecaster(_memory(everything))))
    try:
        once = tuple(trial.replace(purpose="brief") for trial in _memory(everything))
    except BadInput as error:
        return dataclasses.replace(plan, notes=(*plan.notes, f"Memory is not measured: {error}"))
    return dataclasses.replace(plan, once=(*plan.once, *once))


def _memory(everything: Plan) -> tuple[Trial, ...]:
    """What one rank of the same job holds at small batches; the largest batch is calculated, not tried.

    One's own workload may have only the batches it was asked for.
    """
    asked = everything.experiment
    known = set(cards.all_settings("memory")) - {"batch_size", "global_batch_size", "strategy", "env"}
    strategies = {
        setting.name for card in cards.names("strategies") for setting in _settings("strategies", card)
    }
    settings = {n: v for n, v in asked.settings.items() if n in known - strategies}
    settings |= {"world_size": (1,), "strategy": ("single",), "search": (False,), "oversubscribe": (False,)}
    own = any(cards.card("workloads", name) is Custom for name in settings.get("workload", ()))
    batches = sorted({trial.micro_batch_size for trial in everything.trials}) if own else _BATCHES
    settings["batch_size"] = tuple(batches)
    experiment = dataclasses.replace(asked, benchmark="memory", settings=settings)
    return expand(experiment, everything.machine).trials


def _settings(kind: str, name: str) -> tuple[Setting, ...]:
    return settings_of(cards.card(kind, name))


def _with_steps(experiment: Experiment, warmup: int | None, iters: int | None) -> Experiment:
    """The numbers of steps that were asked for, in the words of the settings."""
    chosen = {"epochs", "steps_per_epoch", "window"} & set(experiment.settings)
    if chosen and iters is not None:
        raise BadInput(f"--iters cannot be used with {chosen.pop()}: each says how long a launch measures")
    changes: dict[str, tuple[int, ...]] = {}
    if warmup is not None:
        changes["warmup_steps"] = (warmup,)
    if iters is not None:
        warmups = changes.get("warmup_steps") or experiment.settings.get("warmup_steps", (_WARMUP,))
        changes["steps_per_epoch"] = (max(warmups) + iters,)
    return experiment.with_settings(**changes)


def _with_window(plan: Plan) -> Plan:
    """The plan with windows that leave time for three launches of everything within the budget."""
    measuring = plan.experiment.measuring
    timed = [trial for trial in plan.trials if trial.settings["window"] is not None]
    if measuring.budget is None or not timed:
        return plan
    launches = min(_ROUNDS, measuring.repeats) * len(plan.trials) + len(plan.once)
    longest = float(timed[0].settings["window"])
    fitting = _SHARE * measuring.budget / launches - _LAUNCH_S[timed[0].device]
    window = round(max(_LEAST_WINDOW_S, min(fitting, longest)), 2)
    return dataclasses.replace(
        plan,
        experiment=plan.experiment.with_settings(window=(window,)),
        trials=tuple(trial.replace(window=window) if trial in timed else trial for trial in plan.trials),
    )


def _ranks(plan: Plan) -> int:
    return max(trial.world_size for trial in plan.trials)


def _training_alone(plan: Plan) -> tuple[Trial, ...]:
    """Only the full training step on all ranks, at every batch."""
    most = _ranks(plan)
    return tuple(
        trial for trial in plan.trials if trial.world_size == most and trial.settings["ablation"] == "none"
    )
