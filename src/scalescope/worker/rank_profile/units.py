"""Units: the parts of a model that FSDP gathers as a whole, and marks of when each of them computes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from scalescope.results.result import ROOT_UNIT
from scalescope.worker.rank_profile.marks import MarkKind, StepMarks

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def units_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one at a time: children of containers that have parameters."""
    most = sum(parameter.numel() for parameter in model.parameters()) / 2
    return list(_units_in(model, most))


def _units_in(module: nn.Module, most: float) -> Iterator[nn.Module]:
    for child in module.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        if size == 0:
            continue
        # Gathering a container that is most of the model would gather nearly the whole model.
        whole = isinstance(child, nn.ModuleList) or (isinstance(child, _CONTAINERS) and size > most)
        if isinstance(module, _CONTAINERS) and not whole:
            yield child
        else:
            yield from _units_in(child, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedUnit:
    """A unit; its number is its position in the forward pass, and the root's comes first."""

    name: str
    parameter_bytes: int
    activation_bytes: int  # handed to the next unit by one micro-batch


class UnitMarks:
    """Marks the passes of a model's units, and notes what they hand on."""

    def __init__(self, model: nn.Module, marks: StepMarks) -> None:
        self._model, self._marks = model, marks
        self._modules = units_of(model)
        self._entered: dict[
            int, int
        ] = {}  # units in the order of their first calls, with their input's bytes
        self._output_bytes: dict[int, int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Mark passes inside the block."""
        with ExitStack() as hooks:
            for number, module in enumerate(self._modules):
                before = module.register_forward_pre_hook(partial(self._before, number), with_kwargs=True)
                hooks.callback(before.remove)
                after = module.register_forward_hook(partial(self._after, number))
                hooks.callback(after.remove)
            yield

    @property
    def numbers(self) -> list[int]:
        """The numbers of units in their marks, in the order of the forward pass; uncalled ones last."""
        uncalled = (number for number in range(len(self._modules)) if number not in self._entered)
        return [*self._entered, *uncalled]

    def owners(self, parameters: Sequence[Tensor]) -> dict[int, int]:
        """The unit of each parameter, both by number; those of the root are left out."""
        by_parameter = {
            id(parameter): number
            for number, module in enumerate(self._modules)
            for parameter in module.parameters()
        }
        return {
            number: by_parameter[id(parameter)]
            for number, parameter in enumerate(parameters)
            if id(parameter) in by_parameter
        }

    def unit(self, number: int) -> MarkedUnit:
        """What is known about a unit without the clock."""
        module = self._modules[number]
        name = next(name for name, part in self._model.named_modules() if part is module)
        return MarkedUnit(
            name=name,
            parameter_bytes=_bytes_of(module.parameters()),
            activation_bytes=self._output_bytes.get(number, 0),
        )

    def root(self) -> MarkedUnit:
        """The rest of the model, which hands on what the first unit takes."""
        inside = {id(parameter) for module in self._modules for parameter in module.parameters()}
        rest = (parameter for parameter in self._model.parameters() if id(parameter) not in inside)
        first_input = next(iter(self._entered.values()), 0)
        return MarkedUnit(name=ROOT_UNIT, parameter_bytes=_bytes_of(rest), activation_bytes=first_input)

    def _before(self, number: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = _tensors_in((args, kwargs))
        self._entered.setdefault(number, _bytes_of(inputs))
        self._watch(inputs, MarkKind.UNIT_INPUT_GRADIENT, number)
        self._marks.add(MarkKind.UNIT_BEGINS, number)

    def _after(self, number: int, _: nn.Module, args: Any, output: Any) -> None:
        self._marks.add(MarkKind.UNIT_ENDS, number)
        outputs = _tensors_in(output)
        self._output_bytes[number] = _bytes_of(outputs)
        self._watch(outputs, MarkKind.UNIT_OUTPUT_GRADIENT, number)

    def _watch(self, tensors: Sequence[Tensor], kind: MarkKind, number: int) -> None:
        """Hooks of tensors, which end with them; those of a module's backward pass would refuse in-place
        operations on its output."""
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._marks.add(kind, number))


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for member in value for tensor in _tensors_in(member)]
    return []


def _bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
