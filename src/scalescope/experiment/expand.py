"""Turns an Experiment into Trials: resolves defaults for the machine at hand and multiplies out the lists."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.setting import for_device, settings_of
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial, Value

MOST_TRIALS = 10_000
_MOST_RANKS_PER_CORE = 32  # ranks that sleep share a core well; this many computing ranks hardly advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The trials of an experiment, the request with its defaults filled in, and notes for the user."""

    trials: tuple[Trial, ...]
    experiment: Experiment
    notes: tuple[str, ...]


def expand(experiment: Experiment, machine: Machine, *, many: bool = False) -> Expansion:
    """All trials an experiment asks for on `machine`; more than 10,000 only when `many` is wanted."""
    count = math.prod(len(values) for values in experiment.settings.values())
    if count > MOST_TRIALS and not many:
        raise BadInput(f"the lists combine to {count:,} trials; add --yes to run more than {MOST_TRIALS:,}")
    resolved, notes = resolve_placement(experiment, machine)
    names = list(resolved.settings)
    trials: dict[str, Trial] = {}
    used: set[str] = set()
    for combination in product(*resolved.settings.values()):
        asked = dict(zip(names, combination, strict=True))
        trial = _trial(experiment.benchmark, asked, machine)
        used.update(trial.settings)
        trials.setdefault(trial.trial_id, trial)
    _check_all_used(experiment, used)
    chosen = tuple(trials.values())
    filled = _fill_from_trials(resolved, chosen)
    return Expansion(trials=chosen, experiment=filled, notes=tuple(notes))


def resolve_placement(experiment: Experiment, machine: Machine) -> tuple[Experiment, list[str]]:
    """Settle device, backend, threads and batch for the machine, or explain why that is impossible."""
    settings = dict(experiment.settings)
    notes: list[str] = []
    devices = [_device(str(asked), machine, notes) for asked in settings.get("device", ("auto",))]
    settings["device"] = tuple(dict.fromkeys(devices))
    if machine.system == "Darwin":
        notes.append("macOS: ranks cannot be pinned to cores, and every launch starts new processes.")
    worlds = settings.setdefault("world_size", (1,))
    _check_ranks_fit(settings, machine, notes)
    threads = settings.get("threads_per_rank", (None,))
    if threads != (None,) and _threads_by_variable(settings):
        raise BadInput("--threads-per-rank cannot be used with --env OMP_NUM_THREADS; give only one of them")
    share = max(1, machine.cores // machine.ranks_on_a_host(max(worlds)))
    settings["threads_per_rank"] = tuple(
        dict.fromkeys(share if thread is None else thread for thread in threads)
    )
    return experiment.with_settings(**settings), notes


def _threads_by_variable(settings: Mapping[str, tuple[Value, ...]]) -> bool:
    return any("OMP_NUM_THREADS" in (env or {}) for env in settings.get("env", ()))


def _device(asked: str, machine: Machine, notes: list[str]) -> str:
    if asked == "cpu":
        return "cpu"
    if machine.gpus:
        return "cuda"
    if machine.gpu_problem:
        raise CannotRun(
            f"there is a GPU but torch cannot use it: {machine.gpu_problem}; "
            "use --device cpu to measure the CPU instead"
        )
    if asked == "cuda":
        raise CannotRun("--device cuda: torch finds no GPU here; use --device cpu to measure the CPU")
    notes.append("No GPU found: measuring on the CPU.")
    return "cpu"


def _backend(asked: str, device: str, machine: Machine) -> str:
    backend = asked
    if asked == "auto":
        backend = "nccl" if device == "cuda" and "nccl" in machine.backends else "gloo"
    if backend == "nccl" and device != "cuda":
        raise CannotRun("--backend nccl requires CUDA GPUs; use --backend gloo")
    if backend not in machine.backends:
        raise CannotRun(
            f"--backend {backend}: this torch has only {', '.join(machine.backends) or 'no backend'}"
        )
    return backend


def _check_ranks_fit(settings: Mapping[str, tuple[Value, ...]], machine: Machine, notes: list[str]) -> None:
    most = max(settings["world_size"])
    split = settings.get("split_gpu", (None,))
    if "cuda" in settings["device"] and None not in split and machine.gpus:
        notes.append(
            f"One GPU split into {split[0]} parts: ranks share its memory bandwidth, cache and power, "
            "so this is not the scaling of separate GPUs."
        )
    elif "cuda" in settings["device"] and most > len(machine.gpus):
        if not all(settings.get("oversubscribe", (False,))):
            raise CannotRun(
                f"{most} ranks on {len(machine.gpus)} GPU(s): ranks would share a GPU; "
                "add --oversubscribe to run anyway (the result is then not a scaling measurement)"
            )
        notes.append(f"{most} ranks share {len(machine.gpus)} GPU(s): this is not a scaling measurement.")
    elif "cpu" in settings["device"] and machine.ranks_on_a_host(most) > machine.cores:
        _check_ranks_per_core(settings, machine, most)
        effect = "ranks compete for cores, so this shows less scaling than separate machines would."
        if all(settings.get("stand_in", (False,))):
            effect = "with more ranks than cores, each rank sleeps for the measured compute time."
        notes.append(f"{machine.ranks_on_a_host(most)} ranks on {machine.cores} cores: {effect}")


def _check_ranks_per_core(settings: Mapping[str, tuple[Value, ...]], machine: Machine, most: int) -> None:
    """Refuse ranks that would hardly get to run; ranks that torchrun or srun started are there already."""
    limit = _MOST_RANKS_PER_CORE * machine.cores
    if machine.ranks_per_node is None and most > limit and not all(settings.get("oversubscribe", (False,))):
        raise CannotRun(
            f"{most} ranks on {machine.cores} core(s) are more than {_MOST_RANKS_PER_CORE} per core; use "
            f"--world-size {limit} or fewer, or add --oversubscribe to run anyway"
        )


def _trial(benchmark: str, asked: dict[str, Value], machine: Machine) -> Trial:
    selection = _selection(cards.card("benchmarks", benchmark), asked)
    owners = cards.cards_of_trial(benchmark, selection)
    settings: dict[str, Value] = {"benchmark": benchmark}
    for owner in owners:
        settings |= {**defaults_of(owner, selection, asked["device"]), **_given_settings(owner, asked)}
    settings |= {cards.CHOOSERS[kind]: name for kind, name in selection.items()}
    alone = asked["device"] != "cuda" or settings["split_gpu"] is not None
    shares_gpu = not alone and asked["world_size"] > len(machine.gpus)
    settings["oversubscribe"] = bool(settings["oversubscribe"]) and shares_gpu
    settings["backend"] = _backend(str(settings["backend"]), asked["device"], machine)
    threads = (settings["env"] or {}).get("OMP_NUM_THREADS", "")
    if re.fullmatch("[0-9]{1,9}", threads):  # the variable decides; the record must agree
        settings["threads_per_rank"] = max(1, int(threads))
    if settings.get("global_batch_size") is not None:
        settings["batch_size"] = None
    if "stand_in" in settings:
        threads_of_all = machine.ranks_on_a_host(asked["world_size"]) * settings["threads_per_rank"]
        crowded = threads_of_all > machine.cores
        settings["stand_in"] = settings["stand_in"] and crowded and asked["device"] == "cpu"
    for owner in owners:
        if hasattr(owner, "settle"):
            owner.settle(settings)
    for owner in owners:
        if hasattr(owner, "check"):
            owner.check(settings)
    return Trial(settings=dict(sorted(_without_decided(settings).items())))


def _without_decided(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings without those that the workload decides, which must not be mistaken for chosen ones."""
    if "workload" not in settings:
        return dict(settings)
    decided = set(cards.card("workloads", settings["workload"]).decides) - set(cards.CHOOSERS.values())
    return {name: value for name, value in settings.items() if name not in decided}


def _given_settings(owner: Any, asked: dict[str, Value]) -> dict[str, Value]:
    return {setting.name: asked[setting.name] for setting in settings_of(owner) if setting.name in asked}


def defaults_of(owner: Any, selection: Mapping[str, str], device: str) -> dict[str, Value]:
    """A card's defaults, as the chosen workload and data would have them."""
    defaults = {setting.name: setting.default_for(device) for setting in settings_of(owner)}
    for kind in ("data", "workloads"):
        if kind in selection:
            wished = cards.card(kind, selection[kind]).defaults
            defaults |= {name: for_device(wished[name], device) for name in defaults if name in wished}
    return defaults


def _selection(benchmark: Any, asked: dict[str, Value]) -> dict[str, str]:
    """Which workload, data and strategy a trial uses, where its benchmark has any."""
    chosen: dict[str, str] = {}
    for kind, name in cards.CHOOSERS.items():
        if kind in benchmark.selects:
            start = defaults_of(benchmark, chosen, asked["device"])
            chosen[kind] = str(asked.get(name, start[name]))
    if chosen.get("strategies") == "auto":
        chosen["strategies"] = "single" if asked["world_size"] == 1 else "ddp"
    return chosen


def _check_all_used(experiment: Experiment, used: set[str]) -> None:
    for name in experiment.settings:
        if name not in used:
            owners = {_card_name(version.card) for version in cards.all_settings(experiment.benchmark)[name]}
            raise BadInput(f"{name} is a setting of {' and '.join(sorted(owners))}, which no trial here uses")


def _card_name(class_name: str) -> str:
    """`scratch_ddp` of ScratchDdp: the name by which a person asks for a card."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


def _fill_from_trials(experiment: Experiment, trials: tuple[Trial, ...]) -> Experiment:
    """Record each default that is the same in all trials, to make the request repeatable."""
    filled: dict[str, Any] = dict(experiment.settings)
    hidden = {
        name for name, versions in cards.all_settings(experiment.benchmark).items() if versions[0].internal
    }
    if any(trial.is_command for trial in trials):
        hidden |= {"data", "strategy"}  # nobody can give others
    for name in sorted({name for trial in trials for name in trial.settings}):
        values = [trial.settings[name] for trial in trials if name in trial.settings]
        if name in filled or name in hidden or name == "benchmark":
            continue
        if name == "strategy":  # auto chose differently by the number of ranks
            filled[name] = ("auto",)
            continue
        if all(value == values[0] for value in values):
            filled[name] = (values[0],)
    if _threads_by_variable(filled):
        del filled["threads_per_rank"]  # the variable alone repeats it; both together are refused
    return dataclasses.replace(experiment, settings=filled)
