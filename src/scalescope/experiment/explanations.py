"""Trials that explain another: the same job with one thing removed, or recorded."""

import functools
import json
import shlex
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.train import AUTO, Train
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import ABLATIONS, Trial

# ---- Ablations: the same job with one thing removed, to measure what that thing costs


PRELOADED = "with_preloaded_input"
NO_COMM = "without_communication"
NO_OPTIMIZER = "without_optimizer"


def single_rank_baseline(trial: Trial) -> Trial:
    """The same job on one rank without any wrapper; of a command, whatever it does on one rank."""
    if trial.strategy_card.plain_on_one_rank:
        return trial.on_one_rank()
    wrapper = settings_of(trial.strategy_card)
    kept = {n: v for n, v in trial.settings.items() if n not in {setting.name for setting in wrapper}}
    return Trial(settings=kept).replace(strategy="single").on_one_rank()


def at_per_rank_batch(trial: Trial) -> Trial:
    """The trial with one rank's part of a global batch; with a batch for each rank it has that already."""
    total = trial.global_batch_size
    return trial if total is None else trial.replace(global_batch_size=total // trial.replicas)


def without_communication(trial: Trial) -> Trial | None:
    """The same ranks sending nothing; None where the strategy cannot do without."""
    if trial.world_size == 1 or NO_COMM not in trial.strategy_card.removable(trial.settings):
        return None
    if trial.settings.get("find_unused_parameters"):  # DDP itself exchanges in every step then
        return None
    return _ablated(trial, NO_COMM)


def with_preloaded_input(trial: Trial) -> Trial:
    """The same with batches that wait on the device."""
    return _ablated(trial, PRELOADED) if has_loader(trial) else trial


def without_optimizer(trial: Trial) -> Trial | None:
    """The same without updating parameters; None where updating them is also communication."""
    return (
        _ablated(trial, NO_OPTIMIZER)
        if NO_OPTIMIZER in trial.strategy_card.removable(trial.settings)
        else None
    )


def has_loader(trial: Trial) -> bool:
    """Whether samples come from a loader, which a step may wait for."""
    if trial.is_command:
        return bool(trial.settings.get("observed_loader"))
    return (
        trial.settings.get("data", "synthetic") != "synthetic"
        or trial.settings.get("num_workers") is not None
    )


def _ablated(trial: Trial, what: str) -> Trial:
    return trial.replace(**{what: True})


def has_ablation(trial: Trial, what: str) -> bool:
    """Whether a trial is an ablation of that kind."""
    return what in trial.ablations


# ---- Recordings: the same job under a profiler, in launches of their own that no figure of speed is made of


ARRIVALS = "arrivals"
BREAKDOWN = "breakdown"


def arrivals_of(trial: Trial) -> Trial:
    """The same ranks recorded, to learn who waits for whom."""
    return trial.replace(benchmark=ARRIVALS)


def records_arrivals(trial: Trial) -> bool:
    return trial.benchmark == ARRIVALS


def breakdown_of(trial: Trial) -> Trial:
    """The same job recorded, to learn what a step of one rank consists of."""
    return trial.replace(benchmark=BREAKDOWN)


def records_breakdown(trial: Trial) -> bool:
    return trial.benchmark == BREAKDOWN


def only_explains(trial: Trial) -> bool:
    """Whether a launch is made to explain others: where it fails, nothing that was asked for is missing."""
    recorded = records_arrivals(trial) or records_breakdown(trial)
    return recorded or trial.is_ablation or trial.benchmark == "comm"


def explained_job(trial: Trial) -> Trial | None:
    """The job that a launch only explains, with nothing removed; None where it explains no job of its own."""
    if not only_explains(trial) or not trial.has_strategy:
        return None
    return timed_training_of(trial).replace(**dict.fromkeys(trial.ablations, False))


def timed_training_of(trial: Trial) -> Trial:
    """The timed training of a recorded trial."""
    kept = {name: value for name, value in trial.settings.items() if not name.startswith("profile_")}
    return Trial(settings=kept).replace(benchmark="train")


# ---- Launches that explain a step: the same job with a part removed, and recorded on a GPU


_MOST_JOBS = 4  # of a larger sweep only the speeds are measured
_WINDOW_S = 3.0  # enough to see what a part costs


def step_ablations(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The jobs with a part removed whose cost the host's clock cannot tell."""
    if len(trials) > _MOST_JOBS:
        return ()
    wanted = [ablation for trial in trials if _is_plain(trial) for ablation in _ablations(trial)]
    return tuple(shortened(ablation) for ablation in wanted)


def step_recordings(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """On a GPU the jobs recorded: the host's clock does not see what the GPU does."""
    if len(trials) > _MOST_JOBS:
        return ()
    return tuple(shortened(breakdown_of(trial)) for trial in trials if trial.on_gpu and _is_plain(trial))


def _ablations(trial: Trial) -> Iterable[Trial]:
    preloaded = with_preloaded_input(trial)
    if preloaded is not trial:
        yield preloaded
    no_update = without_optimizer(trial)
    if trial.on_gpu and no_update is not None:
        yield no_update


def _is_plain(trial: Trial) -> bool:
    """Whether a launch measures steps, and no epochs or accuracies, whose length is not ours to shorten."""
    options = trial.options(Train)
    counted = options.steps_per_epoch == AUTO or isinstance(options.steps_per_epoch, int)
    return counted and options.epochs == 1 and not options.eval and not options.stand_in


def shortened(trial: Trial) -> Trial:
    """A launch that only explains needs no long window."""
    window_s = trial.window_s
    return trial if window_s is None else trial.replace(window=min(window_s, _WINDOW_S))


# ---- Phases: what explains a job, measured in the same start of it after its own window


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Another trial of a job that the same processes can measure."""

    trial: Trial
    needs_loader: bool | None = None  # only where the script has a DataLoader, or only where it has none
    once: bool = False  # in the first launch alone


# ---- Same job: the one key that decides whether two trials do the same job


BATCH = frozenset(("batch_size", "global_batch_size"))
LENGTH = frozenset(("epochs", "steps_per_epoch"))  # how long a launch measures
# Settings that spread one job over ranks.
SPREAD = frozenset(("world_size", "strategy", *ABLATIONS, "oversubscribe", "stand_in"))
NO_INFLUENCE = frozenset(("warmup_steps", "lr", "stand_in"))  # on speed


def job_key(trial: Trial, *, ignoring: Set[str] = frozenset()) -> str:
    """Equal for two trials whose identities differ in ignored settings only; sorted by name and value.

    A workload's file counts by its name, and so do files in a command: the same job may be started from
    another folder, or checkout. A strategy without a setting that changes the
    work does what is the default of others.
    """
    kept = {name: value for name, value in _job_settings(trial).items() if name not in ignoring}
    return json.dumps(kept, sort_keys=True)


def differing_settings(trial: Trial, other: Trial) -> frozenset[str]:
    """The settings that must be ignored for two trials to have the same key."""
    here, there = _job_settings(trial), _job_settings(other)
    missing = object()
    return frozenset(
        name for name in here.keys() | there.keys() if here.get(name, missing) != there.get(name, missing)
    )


def changes_work(trial: Trial, name: str) -> bool:
    """Whether another value of a setting makes another job of a trial, as its card says; where ranks run and
    how they share the work does not."""
    setting = cards.settings_by_name(trial.benchmark, of_command=trial.is_command).get(name)
    if setting is None or name in strategy_settings():
        return setting is None
    return setting.card != Placement.__name__ if setting.lever is None else setting.lever.changes == "the job"


def _job_settings(trial: Trial) -> dict[str, Any]:
    settings = {**_default_work(), **trial.identity}
    if isinstance(workload := settings.get("workload"), str) and ".py:" in workload:
        settings["workload"] = PurePath(workload).name
    if isinstance(command := settings.get("command"), str):
        settings["command"] = command_words(command)
    return settings


def command_words(command: str) -> list[str]:
    """The words of a command, of paths to files only the names."""
    return [_file_name(word) for word in shlex.split(command)]


@functools.cache
def strategy_settings() -> frozenset[str]:
    """Settings that spread the work over ranks and do not change the work."""
    settings = (setting.name for owner in _strategies() for setting in settings_of(owner))
    return frozenset(settings) - _default_work().keys()


@functools.cache
def _default_work() -> dict[str, object]:
    """The settings of strategies that change the work, with their defaults."""
    return {
        setting.name: setting.default
        for owner in _strategies()
        for setting in settings_of(owner)
        if setting.name in owner.work_settings
    }


def _strategies() -> list[type[Any]]:
    return [cards.card("strategies", name) for name in cards.names("strategies")]


def _file_name(word: str) -> str:
    """A word of a command, of a path to a file only the name."""
    option, separator, path = word.rpartition("=")
    is_file = "/" in path and PurePath(path).suffix != ""
    return f"{option}{separator}{PurePath(path).name}" if is_file else word
