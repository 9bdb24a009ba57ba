"""Settings of stored trials: those of their cards, with values that the cards allow, and the id they give."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from scalescope.catalog.cards import CHOOSERS, all_settings, card, cards_of_trial, names
from scalescope.catalog.setting import Scalar, Setting, check_value, settings_of
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial

_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "duration": (int, float),
    "bytes": (int,),
    "str": (str,),
    "link": (str,),
}
_LARGEST_NUMBER = 1e18


def check_settings(trial_id: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that no trial has, or that are not those of this id, by a ValueError."""
    _check_text(trial_id, json.dumps(settings))


@functools.lru_cache(maxsize=256)
def _check_text(trial_id: str, text: str) -> None:
    """The same for settings as text: launches of a trial share them, and all are read after every launch."""
    settings: dict[str, Any] = json.loads(text)
    benchmark = settings.get("benchmark")
    if benchmark not in names("benchmarks"):
        raise ValueError("settings.benchmark: not a benchmark of this version")
    known = all_settings(str(benchmark))
    for name, value in settings.items():
        if not _is_allowed(name, value, known.get(name, ())):
            raise ValueError(f"settings.{name[:60]}: not a value that this setting can have")
    try:
        _check_complete(str(benchmark), settings)
        actual = Trial(settings=settings).trial_id
    except (BadInput, TypeError) as error:
        raise ValueError(f"settings: {error}") from None
    if actual != trial_id:
        raise ValueError(
            "trial_id: the settings have another one; the line was changed, or has settings that this "
            "version does not know"
        )


def _is_allowed(name: str, value: Any, versions: tuple[Setting, ...]) -> bool:
    """Whether any card's version of a setting can have the value; of unknown settings any plain value."""
    if name in ("env", "vary"):
        return value is None or _is_text_mapping(value)
    if isinstance(value, int | float) and not abs(value) <= _LARGEST_NUMBER:
        return False
    if not versions or value is None:  # None: a setting that the trial does not have
        return value is None or isinstance(value, bool | int | float | str)
    return any(_fits(setting, value) for setting in versions)


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in (*value, *value.values()))


def _fits(setting: Setting, value: Any) -> bool:
    scalar: Scalar = value
    if isinstance(value, str) and value in setting.words:
        return True
    if not isinstance(value, _TYPES[setting.kind]) or (isinstance(value, bool) and setting.kind != "bool"):
        return False
    try:
        check_value(setting, scalar, "")
    except BadInput:
        return False
    return True


def _check_complete(benchmark: str, settings: Mapping[str, Any]) -> None:
    """Refuse a trial that lacks a setting of its cards, but for those that a command decides by itself."""
    selects = card("benchmarks", benchmark).selects
    selection = {kind: str(settings.get(name)) for kind, name in CHOOSERS.items() if kind in selects}
    decided = card("workloads", selection["workloads"]).decides if selection else ()
    for owner in cards_of_trial(benchmark, selection):
        for setting in settings_of(owner):
            may_be_none = setting.optional or setting.default is None
            if setting.name not in decided and (
                setting.name not in settings or (settings[setting.name] is None and not may_be_none)
            ):
                raise ValueError(f"settings.{setting.name}: missing")
