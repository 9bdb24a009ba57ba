"""Which parts of a model are units, and what is marked of them."""

import torch
from torch import Tensor, nn

from scalescope.results.result import ROOT_UNIT
from scalescope.worker.rank_profile import HostMoments, MarkKind, StepMarks, UnitMarks, units_of


def test_blocks_are_units_and_only_containers_of_most_parameters_are_taken_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert units_of(model) == [model[0], model[2]]
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), block, nn.Linear(4, 4), nn.Linear(4, 4))
    assert units_of(model) == list(model)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), layers, nn.Linear(4, 4))
    assert units_of(model) == [model[0], *layers, model[2]]
    inside = Model()
    assert units_of(inside) == list(inside.blocks)  # what is left over belongs to the root


class Residual(nn.Module):
    """Its output is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.layer(inputs)


class Model(nn.Module):
    """A beginning that belongs to the root, and two blocks whose outputs are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 4, bias=False)
        self.blocks = nn.ModuleList([Residual(), Residual()])

    def forward(self, inputs: Tensor) -> Tensor:
        stream: Tensor = self.begin(inputs)
        for block in self.blocks:
            stream = block(stream).relu_()
        return stream


def marked(model: nn.Module, inputs: Tensor) -> tuple[UnitMarks, list[tuple[MarkKind, str | int]]]:
    """The marks of one pass in both directions."""
    marks = StepMarks(HostMoments())
    units = UnitMarks(model, marks)
    marks.begin()
    with units.installed():
        model(inputs).sum().backward()
    with marks.part("scalescope.clear"):
        pass
    (step,) = marks.read()
    kinds = (MarkKind.PART, MarkKind.GRADIENT)
    return units, [(mark.kind, mark.subject) for mark in step.marks if mark.kind not in kinds]


def test_units_are_marked_forwards_and_backwards() -> None:
    _, happened = marked(Model(), torch.ones(2, 3))
    forward = [
        (MarkKind.UNIT_BEGINS, 0),
        (MarkKind.UNIT_ENDS, 0),
        (MarkKind.UNIT_BEGINS, 1),
        (MarkKind.UNIT_ENDS, 1),
    ]
    backward = [
        (MarkKind.UNIT_OUTPUT_GRADIENT, 1),
        (MarkKind.UNIT_INPUT_GRADIENT, 1),
        (MarkKind.UNIT_OUTPUT_GRADIENT, 0),
        (MarkKind.UNIT_INPUT_GRADIENT, 0),
    ]
    assert happened == [*forward, *backward]


def test_what_is_known_about_units_without_a_clock() -> None:
    model = Model()
    units, _ = marked(model, torch.ones(2, 3))
    root, first = units.root(), units.unit(0)
    assert (root.name, root.parameter_bytes, root.activation_bytes) == (ROOT_UNIT, 48, 32)
    assert (first.name, first.parameter_bytes, first.activation_bytes) == ("blocks.0", 64, 32)
    assert units.owners(list(model.parameters())) == {1: 0, 2: 1}


def test_units_are_in_the_order_of_their_calls() -> None:
    class Reversed(Model):
        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.blocks[1](self.begin(inputs))
            return output

    units, _ = marked(Reversed(), torch.ones(2, 3))
    assert units.numbers == [1, 0]
    assert units.unit(0).activation_bytes == 0


def test_afterwards_nothing_is_marked() -> None:
    model = Model()
    marks = StepMarks(HostMoments())
    units = UnitMarks(model, marks)
    with units.installed():
        pass
    model(torch.ones(2, 3)).sum().backward()
    assert units.numbers == [0, 1]
    assert units.unit(0).activation_bytes == 0
