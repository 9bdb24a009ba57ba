"""Finds the cards: one module per card, named as its implementation in `worker`."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import PurePath
from types import ModuleType
from typing import Any

from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import Setting, nearest, settings_of
from scalescope.errors import BadInput

_SINGULAR = {
    "workloads": "workload",
    "data": "data",
    "strategies": "strategy",
    "levers": "lever",
    "benchmarks": "benchmark",
}
# Kinds with exactly one card per trial, and the setting that names the card.
CHOOSERS = {"workloads": "workload", "data": "data", "strategies": "strategy"}


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """The names of all cards of a kind, for instance the workloads."""
    package = importlib.import_module(f"scalescope.catalog.{kind}")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


_CUSTOM_WORKLOAD = "custom"
_OF_COMMANDS = (("workloads", "command"), ("strategies", "script"))
_NOT_BY_NAME = {("workloads", _CUSTOM_WORKLOAD), *_OF_COMMANDS}


def known_names(kind: str) -> tuple[str, ...]:
    """The names that a user may give."""
    return tuple(name for name in names(kind) if (kind, name) not in _NOT_BY_NAME)


@functools.cache
def card(kind: str, name: str) -> type[Any]:
    """The card of that kind and name."""
    if ":" in name and kind == "workloads":
        return card_in(kind, _CUSTOM_WORKLOAD)
    if name not in names(kind) or (kind, name) == ("workloads", _CUSTOM_WORKLOAD):
        known = ", ".join(known_names(kind))
        hint = nearest(name, known_names(kind))
        if kind == "workloads":
            known += ", or your own FILE.py:FUNCTION"
            hint = f"; did you mean {name}:build?" if PurePath(name).suffix == ".py" else hint
        raise BadInput(f"unknown {_SINGULAR[kind]} {name!r}; known: {known}{hint}")
    return card_in(kind, name)


def card_in(kind: str, module_name: str) -> type[Any]:
    """The card that a module of the catalog holds."""
    module: ModuleType = importlib.import_module(f"scalescope.catalog.{kind}.{module_name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    ]
    assert len(classes) == 1, f"{module.__name__} holds one card, found {len(classes)}"
    return classes[0]


def cards_of_trial(benchmark: str, selection: dict[str, str]) -> tuple[type[Any], ...]:
    """The cards whose settings make up a trial of `benchmark`, given what it selects."""
    owner = card("benchmarks", benchmark)
    chosen: list[type[Any]] = [Placement, owner]
    chosen += [card(kind, name) for kind, name in selection.items()]
    if "levers" in owner.selects:
        applying = None if "workloads" not in selection else card("workloads", selection["workloads"]).levers
        chosen += [card("levers", lever) for lever in (names("levers") if applying is None else applying)]
    return tuple(chosen)


@functools.cache
def all_settings(benchmark: str) -> dict[str, tuple[Setting, ...]]:
    """Every setting a trial of `benchmark` may have, by name, with each card's own version of it."""
    settings: dict[str, tuple[Setting, ...]] = {}
    for owner in _all_cards(benchmark):
        for setting in settings_of(owner):
            settings[setting.name] = (*settings.get(setting.name, ()), setting)
    return settings


def settings_by_name(benchmark: str, *, of_command: bool = False) -> dict[str, Setting]:
    """Every setting a trial of `benchmark` may have, by name; a command has its own versions of some."""
    settings = {name: versions[0] for name, versions in all_settings(benchmark).items()}
    if of_command:
        settings |= {setting.name: setting for owner in command_cards() for setting in settings_of(owner)}
    return settings


def command_cards() -> tuple[type[Any], ...]:
    """The cards that a training command has besides those of its benchmark and of its placement."""
    return tuple(card_in(kind, name) for kind, name in _OF_COMMANDS)


def known_cards() -> tuple[type[Any], ...]:
    """The cards of everything but commands."""
    kinds = ("workloads", "data", "strategies", "levers")
    chosen = [(kind, name) for kind in kinds for name in names(kind) if (kind, name) not in _OF_COMMANDS]
    owners = (card("benchmarks", name) for name in names("benchmarks"))
    return (Placement, *owners, *(card_in(kind, name) for kind, name in chosen))


def grouped_settings(benchmark: str) -> Iterable[tuple[str, type[Any]]]:
    """(heading, card) for every card, in the order in which help shows them; those of commands come last."""
    owner = card("benchmarks", benchmark)
    yield owner.heading, owner
    yield "Placement", Placement
    selected = [(kind, name) for kind in owner.selects for name in names(kind)]
    of_commands = [pair for pair in _OF_COMMANDS if pair in selected and owner.takes_commands]
    for kind, name in (*(pair for pair in selected if pair not in _OF_COMMANDS), *of_commands):
        yield f"{_SINGULAR[kind].capitalize()} {name}", card_in(kind, name)


def _all_cards(benchmark: str) -> tuple[type[Any], ...]:
    return tuple(owner for _, owner in grouped_settings(benchmark))
