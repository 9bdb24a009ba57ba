"""`scale`: world sizes against batch sizes, with the baselines and ablations that explain the difference."""

import dataclasses
from collections.abc import Iterable

from scalescope.catalog import cards
from scalescope.catalog.setting import for_device
from scalescope.errors import ScalescopeError
from scalescope.experiment.ablations import (
    PRELOADED,
    at_per_rank_batch,
    has_ablation,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.expand import defaults_of, expand, resolve_placement
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.scaling.sections import next_after_scaling, scaling_sections, scaling_so_far
from scalescope.report.trials import is_answer
from scalescope.results.result import Result
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.scaling.network import network_of
from scalescope.studies.study import StudyReport, run_study

DEFAULTS = {"repeats": 5}
_BATCHES = {"cpu": (32, 256), "cuda": (256, 4096)}  # one too small to scale, one that should
_MOST_CPU_RANKS = 4  # beyond that, cores say more about the machine than about scaling


def scale(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    most_ranks: int | None = None,
    waterfall: bool = True,
) -> StudyReport:
    """Measure the sweep and show how it scales; `most_ranks` limits the default when attached."""
    experiment = request.experiment(DEFAULTS)
    plan = plan_scaling(request, experiment, launcher, most_ranks, waterfall=waterfall)
    return run_study(
        request,
        plan,
        launcher,
        watcher,
        scaling_sections,
        next_after_scaling,
        answers=lambda result: is_answer(result) or only_explains(result),
        verdict=scaling_so_far,
    )


def plan_scaling(
    request: Request,
    experiment: Experiment,
    launcher: Launcher,
    most_ranks: int | None = None,
    *,
    waterfall: bool = True,
) -> Plan:
    """The trials that were asked for, and those needed to explain them."""
    machine = launcher.machine()
    experiment = _with_default_sweep(experiment, machine, most_ranks)
    expansion = expand(experiment, machine, many=request.yes)
    plan = Plan(
        experiment=expansion.experiment,
        trials=with_explanations(expansion.trials, waterfall=waterfall),
        machine=machine,
        notes=expansion.notes,
        first=frozenset(trial.trial_id for trial in _answers(expansion.trials)),
    )
    if not waterfall:
        return plan
    try:
        return dataclasses.replace(plan, once=network_of(plan, listen=launcher.repeatable))
    except ScalescopeError as error:  # gloo between GPUs, for instance: training goes on without
        return dataclasses.replace(plan, notes=(*plan.notes, f"The exchange is not measured: {error}"))


def _answers(asked: Iterable[Trial]) -> tuple[Trial, ...]:
    """What the table's rows are made of: the trials asked for, and one rank without a wrapper."""
    trials = tuple(asked)
    return (*trials, *(single_rank_baseline(trial) for trial in trials))


def only_explains(result: Result) -> bool:
    """Whether a launch was made to explain others: where it fails, nothing that was asked for is missing."""
    return result.settings["benchmark"] == "comm" or has_ablation(result.trial, PRELOADED)


def _with_default_sweep(experiment: Experiment, machine: Machine, most_ranks: int | None) -> Experiment:
    # A file made for training to an accuracy may ask for it; how fast something scales does not depend on it.
    sweep: dict[str, tuple[object, ...]] = {"eval": (False,)} if "eval" in experiment.settings else {}
    device = chosen_device(experiment, machine)
    if "world_size" not in experiment.settings:
        most = most_ranks or default_most_ranks(device, machine, experiment)
        sweep["world_size"] = tuple(powers_of_two_to(most))
    if not {"batch_size", "global_batch_size"} & set(experiment.settings):
        sweep["batch_size"] = _two_batches(experiment, device)
    return experiment.with_settings(**sweep)


def _two_batches(experiment: Experiment, device: str) -> tuple[int, ...]:
    """One batch too small to scale and one that should, as the workload would have them."""
    workload = str(experiment.settings.get("workload", ("mlp",))[0])
    wished = cards.card("workloads", workload).defaults.get("batch_size")
    if wished is None:
        return _BATCHES[device]
    usual = int(for_device(wished, device) or 1)
    return tuple(dict.fromkeys((max(1, usual // 8), usual)))


def chosen_device(experiment: Experiment, machine: Machine) -> str:
    """What `auto` means for this experiment on this machine."""
    one_rank = experiment.with_settings(world_size=(1,))
    resolved, _ = resolve_placement(one_rank, machine)
    return str(resolved.settings["device"][0])


def default_most_ranks(device: str, machine: Machine, experiment: Experiment) -> int:
    """All GPUs, or all shares of a split one; on the CPU at least two, or there is nothing to see."""
    shares = [parts for parts in experiment.settings.get("split_gpu", ()) if parts]
    if device == "cuda":
        return min(shares) if shares else len(machine.gpus)
    return max(2, min(_MOST_CPU_RANKS, machine.cores))


def powers_of_two_to(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == most else [*sizes, most]


def with_explanations(trials: Iterable[Trial], *, waterfall: bool = True) -> tuple[Trial, ...]:
    """Add what results are compared with: both one-rank baselines, and what a waterfall takes away."""
    asked = list(trials)
    wanted = {trial.trial_id: trial for trial in asked}
    has_one_rank = any(trial.world_size == 1 for trial in asked)
    for trial in asked:
        if trial.settings["strategy"] != "single":
            for companion in _companions(trial, has_one_rank=has_one_rank, waterfall=waterfall):
                wanted.setdefault(companion.trial_id, companion)
    if all(trial.settings["strategy"] == "single" for trial in asked):
        wanted |= {twin.trial_id: twin for twin in map(_wrapped_twin, asked)}
    return tuple(wanted.values())


def _companions(trial: Trial, *, has_one_rank: bool, waterfall: bool) -> list[Trial]:
    """What a trial on several ranks is compared with."""
    wrapper_alone = cards.card("strategies", str(trial.settings["strategy"])).least_ranks == 1
    found = []
    if has_one_rank:
        found += [trial.on_one_rank()] if wrapper_alone else []
        found.append(single_rank_baseline(trial))
    if not waterfall or trial.world_size == 1:
        return found
    silent = without_communication(with_preloaded_input(trial))
    found += [with_preloaded_input(trial), *([] if silent is None else [silent])]
    if has_one_rank:
        share = at_per_rank_batch(trial)
        found += [single_rank_baseline(share), with_preloaded_input(single_rank_baseline(share))]
        found += [with_preloaded_input(share.on_one_rank())] if wrapper_alone else []
    return found


def _wrapped_twin(trial: Trial) -> Trial:
    """The same job on one rank inside DDP, for machines where one rank is all there is."""
    selection = {"workloads": str(trial.settings["workload"])}
    defaults = defaults_of(cards.card("strategies", "ddp"), selection, trial.device)
    return trial.replace(strategy="ddp", **defaults)
