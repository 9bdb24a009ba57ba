"""Keyword arguments as the entries that flags would be: text with its origin, which the cards parse."""

import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import Setting, nearest, settings_of
from scalescope.catalog.slurm import JOB_KEYS
from scalescope.errors import BadInput
from scalescope.experiment.experiment import under_setting_names
from scalescope.experiment.given import Entries, Given, shown_key
from scalescope.studies.study import Study

_SHORTCUT = Setting(name="switch", kind="bool", default=None, help="", card="")  # amp=True


def entries_of(study: Study, given: Mapping[str, Any], options: Iterable[str] = ()) -> Entries:
    """What was asked for by keywords; `options` are the other names that the call takes, for its errors."""
    known = _settings_by_keyword(study.benchmark)
    entries: Entries = {}
    for name, value in given.items():
        if name not in known:
            raise _unknown(study.verb, name, (*known, *options))
        entries |= _entries(name, known[name], value)
    return under_setting_names(study.benchmark, entries)


def _settings_by_keyword(benchmark: str) -> dict[str, Setting]:
    """All public settings, also under the other names that flags have for them."""
    versions = [versions[0] for versions in cards.all_settings(benchmark).values()]
    settings = [*settings_of(Measuring), *(setting for setting in versions if not setting.internal)]
    known = {}
    for setting in settings:
        if setting.shortcut is not None:
            known[setting.shortcut[0]] = _SHORTCUT
        for alias in setting.aliases:
            if alias.startswith("--"):
                known[alias.strip("-").replace("-", "_")] = setting
        known[setting.name] = setting
    return known


def _unknown(verb: str, name: str, known: Iterable[str]) -> BadInput:
    if name in (*JOB_KEYS, "setup"):
        return BadInput(
            f"{name}=: jobs are submitted by the command line: scalescope {verb} --launcher slurm"
        )
    if name == "dry_run":
        return BadInput(f"{name}=: the command line shows plans: scalescope {verb} --dry-run")
    return BadInput(f"{verb}() has no setting {shown_key(name)}{nearest(name, known)}")


def _entries(name: str, setting: Setting, value: Any) -> Entries:
    if setting.kind != "env":
        return {name: tuple(Given(text, f"{name}=") for text in _texts(name, setting, value))}
    if not isinstance(value, Mapping):
        raise BadInput(f"{name}=: expected a dict such as {{'NAME': 'value'}}, got {type(value).__name__}")
    return {
        f"{name}.{key}": tuple(Given(text, f"{name}=") for text in _texts(name, setting, values))
        for key, values in value.items()
    }


def _texts(name: str, setting: Setting, value: Any) -> list[str]:
    """The values as texts; text with commas is a list where the flag takes one."""
    if isinstance(value, str) and setting.sweep and setting.kind not in ("link", "env"):
        return value.split(",")
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [_text(name, setting, value)]
    texts = [_text(name, setting, item) for item in value]
    if not texts or isinstance(value, Mapping):
        raise BadInput(f"{name}=: expected a value or a list of values, got {value!r}")
    return texts


def _text(name: str, setting: Setting, value: Any) -> str:
    if value is None:
        return setting.none_word
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | numbers.Real | os.PathLike):
        return str(value)
    raise BadInput(f"{name}=: expected text, a number, True, False or None, got {type(value).__name__}")
