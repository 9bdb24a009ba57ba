"""`run`: the main job. Looks at the machine, measures how it scales, and says where everything is."""

import dataclasses

from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment
from scalescope.launch.launcher import Launcher
from scalescope.report.machine import machine_section
from scalescope.report.scaling import next_after_scaling, scaling_sections
from scalescope.report.section import Section
from scalescope.report.training import next_after_training, training_sections
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.scale import plan_scaling
from scalescope.studies.study import StudyReport, carry_out

PARTS = ("comm", "training", "memory", "scaling")
NOT_BUILT = ("comm", "memory")
DEFAULTS = {"repeats": 5, "budget": 90.0}
_WARMUP = 5
_ITERS = 20


def main_job(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    parts: tuple[str, ...] = PARTS,
    most_ranks: int | None = None,
    warmup: int | None = None,
    iters: int | None = None,
) -> StudyReport:
    """Run the parts that are asked for and built; the others are named as missing."""
    missing = [part for part in parts if part in NOT_BUILT]
    for part in missing:
        watcher.noted(f"{part}: this part of the main job is not built yet and was not run.")
    if len(missing) == len(parts):
        raise BadInput(f"--benchmark {','.join(parts)}: nothing is left; training and scaling are built")
    machine = launcher.machine()
    plan = plan_scaling(
        request, _with_steps(request.experiment(DEFAULTS), warmup, iters), machine, most_ranks
    )
    watcher.shown((machine_section(machine, _ranks(plan)),))
    if "scaling" not in parts:
        plan = _training_alone(plan)

    next_step = next_after_scaling if "scaling" in parts else next_after_training

    def sections(run: Run) -> tuple[Section, ...]:
        shown: tuple[Section, ...] = ()
        if "training" in parts and "scaling" not in parts:
            shown += training_sections(run)
        if "scaling" in parts:
            shown += scaling_sections(run)
        return shown

    return carry_out(request, plan, launcher, watcher, sections, next_step)


def _with_steps(experiment: Experiment, warmup: int | None, iters: int | None) -> Experiment:
    """Few steps, so that the main job keeps nobody waiting, unless the steps were chosen."""
    chosen = {"epochs", "steps_per_epoch"} & set(experiment.settings)
    if chosen and iters is not None:
        raise BadInput(f"--iters counts measured steps and {chosen.pop()} all of them; give one")
    changes: dict[str, tuple[int, ...]] = {}
    if warmup is not None:
        changes["warmup_steps"] = (warmup,)
    if not chosen:
        warmups = changes.get("warmup_steps") or experiment.settings.get("warmup_steps", (_WARMUP,))
        changes["steps_per_epoch"] = (max(warmups) + (iters or _ITERS),)
    return experiment.with_settings(**changes)


def _ranks(plan: Plan) -> int:
    return max(trial.world_size for trial in plan.trials)


def _training_alone(plan: Plan) -> Plan:
    """Only the full training step on all ranks, at every batch."""
    most = _ranks(plan)
    kept = tuple(
        trial for trial in plan.trials if trial.world_size == most and trial.settings["ablation"] == "none"
    )
    return dataclasses.replace(plan, trials=kept)
