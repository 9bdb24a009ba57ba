"""Pacing: a model that sleeps for its compute time and returns ready gradients of real parameters.

Many ranks can then share few cores: sleeping costs no core, and the communication is real.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from scalescope import clocks
from scalescope.results.traces.events import COMPUTE


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When the loss is ready after the forward pass began, and each gradient after backward began."""

    forward_s: float
    gradient_ready_s: tuple[float, ...]  # in the order in which gradients come, the last parameter's first
    optimizer_s: float = 0.0


class PacedModel(nn.Module):
    """Holds the parameters of `body` and sleeps instead of computing with them.

    `order` is their order of use; gradients come in reverse. Each gradient is 1 in every element, times
    the factor of the loss.
    """

    def __init__(self, body: nn.Module, order: Sequence[nn.Parameter], pace: Pace) -> None:
        super().__init__()
        assert len(order) == len(pace.gradient_ready_s)
        self.body = body
        # Names, not parameters: moving or sharding a model replaces its parameters.
        names = {id(parameter): name for name, parameter in body.named_parameters()}
        self._order = [names[id(parameter)] for parameter in order]
        self._pace = pace
        self._backward_began = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A loss of 1, after the time of the forward pass."""
        began = clocks.perf_counter()
        parameters = [self.body.get_parameter(name) for name in self._order]
        signal = torch.ones((), device=parameters[0].device)
        for index, parameter in enumerate(parameters):
            signal = _Use.apply(signal, parameter, self, index)
        with record_function(COMPUTE):
            _sleep_until(began + self._pace.forward_s)
        return signal

    def wait_for_gradient(self, index: int) -> None:
        """Sleep until the gradient of the parameter used at position `index` is ready."""
        number = len(self._order) - 1 - index
        with record_function(COMPUTE):
            _sleep_until(self._backward_began + self._pace.gradient_ready_s[number])

    def note_use(self, index: int) -> None:
        """The last parameter's gradient comes first: the backward pass begins."""
        if index == len(self._order) - 1:
            self._backward_began = clocks.perf_counter()


class _Use(torch.autograd.Function):
    """One parameter's node in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, parameter: Tensor, model: PacedModel, index: int) -> Tensor:
        ctx.model, ctx.index = model, index
        ctx.shape, ctx.dtype = parameter.shape, parameter.dtype
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        ctx.model.note_use(ctx.index)
        # A new tensor every time, made while the time passes: the parameter keeps it as its gradient, and
        # averaging, accumulation and clearing write into that.
        gradient = outputs[0].to(ctx.dtype).expand(ctx.shape).clone(memory_format=torch.contiguous_format)
        ctx.model.wait_for_gradient(ctx.index)
        return outputs[0], gradient, None, None


class SleepingOptimizer(torch.optim.Optimizer):
    """Sleeps for the time of an optimizer step; does not change the parameters."""

    def __init__(self, parameters: Iterator[nn.Parameter], duration_s: float) -> None:
        super().__init__(parameters, {})
        self._duration_s = duration_s

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with record_function(COMPUTE):
            _sleep_until(clocks.perf_counter() + self._duration_s)


def _sleep_until(moment: float) -> None:
    """Sleep to a moment, so that delays of single sleeps do not add up."""
    clocks.sleep(max(0.0, moment - clocks.perf_counter()))
