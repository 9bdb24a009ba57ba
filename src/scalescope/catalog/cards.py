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
    "collectives": "collective",
}


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """The names of all cards of a kind, for instance the workloads."""
    package = importlib.import_module(f"scalescope.catalog.{kind}")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


_CUSTOM_WORKLOAD = "custom"
_NOT_BY_NAME = {("workloads", _CUSTOM_WORKLOAD), ("workloads", "command"), ("strategies", "script")}


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


def grouped_settings(benchmark: str) -> Iterable[tuple[str, type[Any]]]:
    """(heading, card) for every card, in the order in which help shows them."""
    owner = card("benchmarks", benchmark)
    yield owner.heading, owner
    yield "Placement", Placement
    for kind in owner.selects:
        for name in names(kind):
            yield f"{_SINGULAR[kind].capitalize()} {name}", card_in(kind, name)


def _all_cards(benchmark: str) -> tuple[type[Any], ...]:
    return tuple(owner for _, owner in grouped_settings(benchmark))
