"""Same job: the one key that decides whether two trials do the same job."""

import functools
import json
import shlex
from collections.abc import Set
from pathlib import PurePath
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import ABLATIONS, Trial

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
