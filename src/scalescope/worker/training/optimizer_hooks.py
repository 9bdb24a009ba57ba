"""Hooks that a user registered on an optimizer, for optimizers that are rebuilt or wrapped."""

from collections.abc import MutableMapping
from typing import Any

from torch.optim import Optimizer

from scalescope.errors import BadInput


def copy_hooks(source: Optimizer, target: Optimizer) -> None:
    """Give `target` the hooks of `source`, except those that its own constructor registered already."""
    for name, hooks in _hooks_of(source).items():
        registered = _hooks_of(target).get(name)
        if registered is None and hooks:
            raise BadInput(
                f"the hooks of {type(source).__name__} cannot be kept: {type(target).__name__} has no {name}"
            )
        if registered is not None:
            registered.update(list(hooks.items())[len(registered) :])


def move_hooks(source: Optimizer, target: Optimizer) -> None:
    """The same, and remove them from `source`: otherwise they would run twice per step."""
    copy_hooks(source, target)
    for hooks in _hooks_of(source).values():
        hooks.clear()


def _hooks_of(optimizer: Optimizer) -> dict[str, MutableMapping[int, Any]]:
    """All tables of hooks by name: torch has no public way to list them."""
    return {
        name: table
        for name, table in vars(optimizer).items()
        if name.endswith("_hooks") and isinstance(table, MutableMapping)
    }
