"""`run`: the standard benchmark. Looks at the machine, measures how it scales, and writes a report."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import NCCL_LOG
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import only_explains
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.studies.commands import NO_MEMORY, remaining_launches
from scalescope.studies.flags import read_flags
from scalescope.studies.memory import with_one_forecaster
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.scaling.network import exchanges
from scalescope.studies.scaling.scale import (
    DEFAULT_SWEEP,
    plan_scaling,
    scaling_launches,
)
from scalescope.studies.study import Host, Interim, Report, Study

if TYPE_CHECKING:
    from scalescope.report.analyzed_run import AnalyzedRun
    from scalescope.report.section import Section, ShownCommand
    from scalescope.results.run import Run

PARTS = ("comm", "training", "memory", "scaling")
_WARMUP = 5
_ROUNDS = 3  # of launches that the budget is to have room for: what an interval needs
_SHARE = 0.75  # of the budget that is planned; the rest is for machines slower than expected
_LAUNCH_S = {"cpu": 1.0, "cuda": 1.5}  # what a launch takes besides its window
_COMMAND_S = 6.0  # the same of a command, which loads torch anew in every launch
_TRIALS_OF_COMMAND = 3  # for each trial of a command that is asked for, with what will explain it
_LEAST_WINDOW_S = 0.5
_BATCHES = (2, 8)  # for memory; models that normalise over the batch refuse one sample


@dataclass(frozen=True, kw_only=True)
class RunStudy(Study):
    """Runs the parts that are asked for, and writes the page of the report."""

    verb: ClassVar[str] = "run"
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 5, "budget": 110.0, "min_steps": 3}
    planned_defaults: ClassVar[Mapping[str, str]] = {
        **DEFAULT_SWEEP,
        "window": "what the budget allows, at most 1.5s on CPU, 3s on GPU",
    }

    parts: tuple[str, ...] = PARTS
    warmup: int | None = None
    iters: int | None = None
    waterfall: bool = True

    def flags(self) -> tuple[str, ...]:
        chosen = ("--benchmark", ",".join(self.parts)) if self.parts != PARTS else ()
        return (*chosen, *(() if self.waterfall else ("--no-waterfall",)))

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        given = read_flags(flags)
        parts = str(given.get("benchmark", ",".join(PARTS))).split(",")
        return cls(parts=tuple(parts), waterfall="no-waterfall" not in given)

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        experiment = self._with_steps(experiment)
        everything = plan_scaling(experiment, host, waterfall=self.waterfall, many=many)
        if "window" not in experiment.settings:
            everything = _with_window(everything)
        trials = self._trials(everything)
        ids = {trial.trial_id for trial in trials}
        once = tuple(t for t in everything.once if "scaling" in self.parts and t.trial_id not in ids)
        plan = dataclasses.replace(everything, trials=trials, once=once)
        if "memory" in self.parts and experiment.is_command:
            plan = _without_memory(plan, alone=self.parts == ("memory",))
        elif "memory" in self.parts:
            plan = _with_memory(plan, everything, alone=self.parts == ("memory",))
        if not plan.all_trials:
            names = ",".join(self.parts)
            raise CannotRun(f"--benchmark {names}: collectives require at least 2 ranks; this run has 1")
        return plan

    def preface(self, plan: Plan) -> "tuple[Section, ...]":
        from scalescope.report.machine import machine_section

        return (machine_section(plan.machine, max(plan.experiment.asked("world_size", 1))),)

    def interim(self, run: "Run") -> Interim | None:
        from scalescope.report.scaling.sections import scaling_so_far

        text = scaling_so_far(run) if "scaling" in self.parts else None
        return None if text is None else Interim(text)

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]:
        if self.waterfall and "scaling" in self.parts:
            return scaling_launches(self, run)
        return remaining_launches(self, run, tuple)

    def is_expected_failure(self, result: Result) -> bool:
        """The collectives are a part that was asked for; pairs and NCCL's log only explain."""
        trial = result.trial
        explains = trial.measures_pairs or trial.purpose == NCCL_LOG
        asked = "comm" in self.parts and trial.benchmark == "comm" and not explains
        return Study.is_expected_failure(self, result) or (only_explains(result.trial) and not asked)

    def present(self, run: "Run") -> Report:
        from scalescope.report.analyzed_run import AnalyzedRun
        from scalescope.report.comm.sections import communication_brief
        from scalescope.report.memory.sections import memory_brief
        from scalescope.report.scaling.sections import scaling_sections
        from scalescope.report.training.sections import training_sections
        from scalescope.studies.report import PAGE, page_of
        from scalescope.studies.stored import report_of, with_files

        analyzed = AnalyzedRun(run)
        training = scaling_sections(analyzed) if "scaling" in self.parts else training_sections(analyzed)
        trained = training if {"scaling", "training"} & set(self.parts) else ()
        sections = (*trained, *communication_brief(run), *memory_brief(run))
        report = report_of(self, analyzed, sections, self._next_step(analyzed))
        return with_files(report, {PAGE: lambda: page_of(run)})

    def _next_step(self, analyzed: "AnalyzedRun") -> "ShownCommand | None":
        from scalescope.report.memory.sections import next_after_memory
        from scalescope.report.scaling.sections import next_after_scaling
        from scalescope.report.training.sections import next_after_training

        if "scaling" in self.parts:
            return next_after_scaling(analyzed)
        return next_after_memory(analyzed.run) if self.parts == ("memory",) else next_after_training(analyzed)

    def _trials(self, everything: Plan) -> tuple[Trial, ...]:
        """The trials of the chosen parts; training is a part of scaling and is not run twice."""
        trials: tuple[Trial, ...] = ()
        if "scaling" in self.parts:
            trials = everything.trials
        elif "training" in self.parts:
            trials = _training_alone(everything)
        if "comm" in self.parts and _ranks(everything) > 1:
            trials += _communication(everything)
        return trials

    def _with_steps(self, experiment: Experiment) -> Experiment:
        """The experiment with the numbers of steps that were asked for."""
        if self.iters is not None and experiment.is_command:
            raise BadInput("--iters cannot be used with a command; --window sets how long a launch measures")
        chosen = {"epochs", "steps_per_epoch", "window"} & set(experiment.settings)
        if chosen and self.iters is not None:
            raise BadInput(
                f"--iters cannot be used with {chosen.pop()}: each sets how long a launch measures"
            )
        changes: dict[str, tuple[int, ...]] = {}
        if self.warmup is not None:
            changes["warmup_steps"] = (self.warmup,)
        if self.iters is not None:
            warmups = changes.get("warmup_steps") or experiment.asked("warmup_steps", _WARMUP)
            changes["steps_per_epoch"] = (max(warmups) + self.iters,)
        return experiment.with_settings(**changes)


def _communication(everything: Plan) -> tuple[Trial, ...]:
    """A short all-reduce on all ranks, placed as the training ranks are."""
    most = _ranks(everything)
    return tuple(trial for trial in exchanges(everything) if trial.world_size == most)


def _with_memory(plan: Plan, everything: Plan, *, alone: bool) -> Plan:
    """The plan with a look at memory; next to other parts, one that can fail without harm."""
    if alone:
        return dataclasses.replace(plan, once=(*plan.once, *with_one_forecaster(_memory(everything))))
    try:
        once = tuple(trial.replace(purpose="brief") for trial in _memory(everything))
    except BadInput as error:
        return dataclasses.replace(plan, notes=(*plan.notes, f"Memory is not measured: {error}"))
    return dataclasses.replace(plan, once=(*plan.once, *once))


def _without_memory(plan: Plan, *, alone: bool) -> Plan:
    """The plan of a command, whose memory is unknown; refuses where nothing else was asked for."""
    if alone:
        raise BadInput("--benchmark memory cannot be used with a command; comm, training and scaling can")
    return dataclasses.replace(plan, notes=(*plan.notes, NO_MEMORY))


def _memory(everything: Plan) -> tuple[Trial, ...]:
    """What one rank of the same job holds at small batches; the largest batch is calculated, not tried.

    A workload that brings its data may have only the batches it was asked for.
    """
    asked = everything.experiment
    known = set(cards.all_settings("memory")) - {"batch_size", "global_batch_size", "strategy", "env"}
    of_strategies = {
        setting.name
        for name in cards.names("strategies")
        for setting in settings_of(cards.card("strategies", name))
    }
    settings = {n: v for n, v in asked.settings.items() if n in known - of_strategies}
    brings_data = any(cards.card("workloads", name).brings_data for name in asked.asked("workload"))
    batches = sorted({trial.micro_batch_size for trial in everything.trials}) if brings_data else _BATCHES
    settings |= {
        "world_size": (1,),
        "strategy": ("single",),
        "search": (False,),
        "oversubscribe": (False,),
        "batch_size": tuple(batches),
    }
    experiment = dataclasses.replace(asked, benchmark="memory", settings=settings)
    return expand(experiment, everything.machine).trials


def _with_window(plan: Plan) -> Plan:
    """The plan with windows that leave time for three launches of everything within the budget."""
    measuring = plan.experiment.measuring
    windows = [trial.window_s for trial in plan.trials if trial.window_s is not None]
    if measuring.budget is None or not windows:
        return plan
    planned = len(plan.trials) * (_TRIALS_OF_COMMAND if plan.continues else 1)
    launches = min(_ROUNDS, measuring.repeats) * planned + len(plan.once)
    start_s = _COMMAND_S if plan.continues else _LAUNCH_S[plan.trials[0].device]
    besides_s = start_s + max(trial.soak_s for trial in plan.trials)
    fitting = _SHARE * measuring.budget / launches - besides_s
    window = round(max(_LEAST_WINDOW_S, min(fitting, windows[0])), 2)
    return dataclasses.replace(
        plan,
        experiment=plan.experiment.with_settings(window=(window,)),
        trials=tuple(
            trial if trial.window_s is None else trial.replace(window=window) for trial in plan.trials
        ),
    )


def _ranks(plan: Plan) -> int:
    return max(trial.world_size for trial in plan.trials)


def _training_alone(plan: Plan) -> tuple[Trial, ...]:
    """Only the full training step on all ranks, at every batch."""
    most = _ranks(plan)
    return tuple(
        trial
        for trial in plan.trials
        if trial.is_training and trial.world_size == most and not trial.is_ablation
    )
