"""Marks in a few steps: which part of the step goes on, which gradient is ready, which unit computes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from scalescope.results.traces.events import CLEAR
from scalescope.worker.rank_profile.moments import Moments

REST = ""  # the part between all others


class MarkKind(Enum):
    """What happens at a mark, and what its subject is."""

    PART = auto()  # a part of the step goes on from here: its name
    GRADIENT = auto()  # a gradient is ready: the number of its parameter
    UNIT_BEGINS = auto()  # the forward pass of a unit, as all below: its number
    UNIT_ENDS = auto()
    UNIT_OUTPUT_GRADIENT = auto()  # its backward pass begins
    UNIT_INPUT_GRADIENT = auto()  # and ends


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened so long after its step began."""

    kind: MarkKind
    subject: str | int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedStep:
    """The marks of one step, in the order in which the host made them."""

    marks: tuple[Mark, ...]
    step_s: float


class StepMarks:
    """Collects marks; a step ends where its gradients have been cleared."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._steps: list[list[tuple[MarkKind, str | int, Any]]] = []
        self._ends: list[Any] = []
        self._under_way = [REST]

    def begin(self) -> None:
        """The first step begins."""
        self._begin_step()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the step; one that lies inside another is taken out of it."""
        self._under_way.append(name)
        self.add(MarkKind.PART, name)
        try:
            yield
        finally:
            self._under_way.pop()
            if name == CLEAR:
                self._end_step()
            else:
                self.add(MarkKind.PART, self._under_way[-1])

    def add(self, kind: MarkKind, subject: str | int) -> None:
        """Note that something happens now."""
        self._steps[-1].append((kind, subject, self._moments.mark()))

    def read(self) -> list[MarkedStep]:
        """The steps that have ended."""
        self._moments.finish()
        return [self._read_step(marks, end) for marks, end in zip(self._steps, self._ends, strict=False)]

    def _begin_step(self) -> None:
        self._steps.append([(MarkKind.PART, self._under_way[-1], self._moments.begin_step())])

    def _end_step(self) -> None:
        self._ends.append(self._moments.mark())
        self._begin_step()

    def _read_step(self, marks: Sequence[tuple[MarkKind, str | int, Any]], end: Any) -> MarkedStep:
        began, seconds = marks[0][2], self._moments.seconds
        return MarkedStep(
            marks=tuple(Mark(kind, subject, seconds(began, moment)) for kind, subject, moment in marks),
            step_s=seconds(began, end),
        )


@contextmanager
def marked_gradients(parameters: Sequence[torch.Tensor], marks: StepMarks) -> Iterator[None]:
    """Mark when each of these parameters has its gradient."""
    add, kind = marks.add, MarkKind.GRADIENT
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: add(kind, number))
        for number, parameter in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
