"""Optimizers that a user made: built anew, or kept, for the parameters that a strategy leaves in the model.

A parameter is known by its name, because strategies replace parameters and models keep their names.
"""

import inspect
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from scalescope.errors import BadInput

_NO_OPTIONS = ("params", "param_names")
Hooks = Mapping[str, Mapping[int, Any]]
ParameterGroup = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NamedGroup:
    """The parameters of a group by name, and its options."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


def named_groups(optimizer: Optimizer, model: nn.Module) -> tuple[NamedGroup, ...]:
    """The groups of an optimizer whose parameters are the model's."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter in _parameters_of(optimizer):
        if id(parameter) not in names:
            raise BadInput(
                f"the optimizer {type(optimizer).__name__} holds a parameter of shape "
                f"{tuple(parameter.shape)} that the model does not have; create it from the parameters of "
                "the model that is returned"
            )
    return tuple(
        NamedGroup(
            names=tuple(names[id(parameter)] for parameter in group["params"]),
            options={name: value for name, value in group.items() if name not in _NO_OPTIONS},
        )
        for group in optimizer.param_groups
    )


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@dataclass(frozen=True, kw_only=True)
class GivenOptimizer:
    """A user's optimizer that is kept: schedulers and functions that refer to it continue to work."""

    optimizer: Optimizer
    groups: tuple[NamedGroup, ...]

    def on(self, model: nn.Module) -> Optimizer:
        """The optimizer with the parameters that the model has now under the same names."""
        parameters = dict(model.named_parameters())
        for group, named in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [parameters[name] for name in named.names]
        return self.optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerRebuild:
    """Builds a user's optimizer anew: of the same class, with the same groups, options and hooks."""

    kind: type[Optimizer]
    model: nn.Module
    groups: tuple[NamedGroup, ...]
    options: Mapping[str, Any]  # of the constructor
    hooks: Hooks
    changes: Mapping[str, Any] = field(default_factory=dict)  # options of all groups, such as fused

    @classmethod
    def of(cls, optimizer: Optimizer, model: nn.Module) -> "OptimizerRebuild":
        """Holds no parameter: a strategy that shards must be able to free the whole ones."""
        groups = named_groups(optimizer, model)
        known = {**groups[0].options, **optimizer.defaults}
        return cls(
            kind=type(optimizer),
            model=model,
            groups=groups,
            options={
                name: known[name] for name in inspect.signature(type(optimizer)).parameters if name in known
            },
            hooks=hooks_of(optimizer),
        )

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer of some or all parameters of the model, or of as many of a copy."""
        groups = [group for group in self.grouped(parameters) if group["params"]]
        if not groups:
            raise BadInput(f"the optimizer {self.kind.__name__} holds no parameter of this rank's part")
        return self.of_groups(groups)

    def grouped(self, parameters: Iterable[nn.Parameter]) -> list[ParameterGroup]:
        """The user's groups with these parameters, in the order in which the user gave them."""
        by_name = self._by_name(list(parameters))
        return [
            {
                "params": [by_name[name] for name in group.names if name in by_name],
                **group.options,
                **self.changes,
            }
            for group in self.groups
        ]

    def of_groups(self, groups: Sequence[ParameterGroup]) -> Optimizer:
        """The optimizer of groups that have all options."""
        rebuilt = self.kind(groups, **self.options)
        give_hooks(self.hooks, rebuilt, self.kind.__name__)
        return rebuilt

    def with_options(self, **changes: Any) -> "OptimizerRebuild":
        """The same with other options in all groups."""
        return replace(self, changes={**self.changes, **changes})

    def _by_name(self, parameters: Sequence[nn.Parameter]) -> dict[str, nn.Parameter]:
        """By the names that they have in the model now; those of a copy of it by their position."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        if all(id(parameter) in names for parameter in parameters):
            return {names[id(parameter)]: parameter for parameter in parameters}
        if len(parameters) != len(names):
            raise BadInput(
                f"the optimizer {self.kind.__name__} cannot be rebuilt: {len(parameters)} parameters do "
                f"not belong to the model, which has {len(names)}; return a function that creates it from "
                "parameters instead"
            )
        return dict(zip(names.values(), parameters, strict=True))


def hooks_of(optimizer: Optimizer) -> dict[str, dict[int, Any]]:
    """All hooks by the name of their table: torch has no public way to list them."""
    return {name: dict(table) for name, table in _tables_of(optimizer).items()}


def give_hooks(hooks: Hooks, target: Optimizer, source_name: str) -> None:
    """Register hooks, except those that the target's own constructor registered already."""
    tables = _tables_of(target)
    for name, registered in hooks.items():
        table = tables.get(name)
        if table is None and registered:
            raise BadInput(
                f"the hooks of {source_name} cannot be kept: {type(target).__name__} has no {name}"
            )
        if table is not None:
            table.update(list(registered.items())[len(table) :])


def move_hooks(source: Optimizer, target: Optimizer) -> None:
    """Let `target` have the hooks of `source`, which would otherwise run twice per step."""
    give_hooks(hooks_of(source), target, type(source).__name__)
    for hooks in _tables_of(source).values():
        hooks.clear()


def _tables_of(optimizer: Optimizer) -> dict[str, MutableMapping[int, Any]]:
    return {
        name: table
        for name, table in vars(optimizer).items()
        if name.endswith("_hooks") and isinstance(table, MutableMapping)
    }
