"""Pacing: a model that sleeps for its compute time and hands out ready gradients of real parameters.

Many ranks can share few cores that way: what they sleep costs none, what they send is real.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When things are ready: the loss after the forward pass began, each gradient after the backward did."""

    forward_s: float
    gradient_ready_s: tuple[float, ...]  # in the order in which gradients come, the last parameter's first
    optimizer_s: float = 0.0


class PacedModel(nn.Module):
    """Holds the parameters as `body` does and pretends to compute with them.

    `order` names their order of use: gradients come from its end to its beginning.
    """

    def __init__(self, body: nn.Module, order: Sequence[nn.Parameter], pace: Pace) -> None:
        super().__init__()
        assert len(order) == len(pace.gradient_ready_s)
        self.body = body
        self._order = list(order)  # a plain list: they are registered in `body` already
        self._pace = pace
        self._gradients = [torch.zeros_like(one) for one in self._order]
        self._backward_began = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A loss of 1, after the time of the forward pass."""
        _sleep_until(time.perf_counter() + self._pace.forward_s)
        signal = torch.ones((), device=self._order[0].device)
        for place, parameter in enumerate(self._order):
            signal = _Use.apply(signal, parameter, self, place)
        return signal

    def gradient(self, place: int) -> Tensor:
        """The gradient of the parameter used at `place`, once it is time for it."""
        number = len(self._order) - 1 - place
        if number == 0:
            self._backward_began = time.perf_counter()
        _sleep_until(self._backward_began + self._pace.gradient_ready_s[number])
        return self._gradients[place]


class _Use(torch.autograd.Function):
    """One parameter's place in the graph."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, parameter: Tensor, model: PacedModel, place: int) -> Tensor:
        ctx.model, ctx.place = model, place
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        return outputs[0], ctx.model.gradient(ctx.place), None, None


class SleepingOptimizer(torch.optim.Optimizer):
    """Takes the time of a step and leaves the parameters alone."""

    def __init__(self, parameters: Iterator[nn.Parameter], duration_s: float) -> None:
        super().__init__(parameters, {})
        self._duration_s = duration_s

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        _sleep_until(time.perf_counter() + self._duration_s)


def _sleep_until(moment: float) -> None:
    """Sleep to a moment, so that what a sleep takes too long is not added up."""
    time.sleep(max(0.0, moment - time.perf_counter()))
