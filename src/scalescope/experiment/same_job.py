"""Same job: the one key that decides whether two trials do the same job."""

import functools
import json
import shlex
from collections.abc import Set
from pathlib import PurePath
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import ABLATIONS, Trial

BATCH = frozenset(("batch_size", "global_batch_size"))
LENGTH = frozenset(("epochs", "steps_per_epoch"))  # how long a launch measures
# Settings that spread one job over ranks.
SPREAD = frozenset(("world_size", "strategy", *ABLATIONS, "oversubscribe", "stand_in"))


def job_key(trial: Trial, *, ignoring: Set[str] = frozenset()) -> str:
    """Equal for two trials whose identities differ in ignored settings only; sorted by name and value.

    A workload's file counts by its name, and so do files in a command: the same job may be started from
    another folder, or checkout. A strategy without a setting that changes the
    work does what is the default of others.
    """
    settings = {**_default_work(), **trial.identity}
    kept = {name: value for name, value in settings.items() if name not in ignoring}
    if isinstance(workload := kept.get("workload"), str) and ".py:" in workload:
        kept["workload"] = PurePath(workload).name
    if isinstance(command := kept.get("command"), str):
        kept["command"] = [_file_name(word) for word in shlex.split(command)]
    return json.dumps(kept, sort_keys=True)


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
