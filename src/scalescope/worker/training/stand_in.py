"""Ranks and models that sleep for measured times in place of computing."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from scalescope import clocks
from scalescope.catalog.training import Training
from scalescope.experiment.trial import Trial
from scalescope.results.traces.events import COMPUTE, OPTIMIZER
from scalescope.worker.process.group import Group
from scalescope.worker.rank_profile import (
    StepMarks,
    TimedStep,
    marked_gradients,
    moments_of,
    timed_step,
    trained_parameters,
    typical_step,
)
from scalescope.worker.training.assembly import build_feed, optimizer_factory, with_levers
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import with_ranges
from scalescope.worker.training.step import Workload, plain_step

# ---- Pacing: a model that sleeps for its compute time and returns ready gradients of real parameters


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
    """Sleep until a point in time: the delays of single sleeps do not add up."""
    clocks.sleep(max(0.0, moment - clocks.perf_counter()))


# ---- Stand-ins: with more ranks than cores, all sleep for the compute times that rank 0 measured alone


_WARMUPS = 2
_MEASURED = 5


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Compute times measured on rank 0: each part of a step, and when each gradient is ready."""

    forward_s: float
    optimizer_s: float
    ready_order: list[int]  # indices of trained parameters, in the order in which their gradients are ready
    gradient_ready_s: list[float]


def stand_in_for(
    workload: Workload, trial: Trial, group: Group, device: torch.device, measurements: Measurements
) -> Workload:
    """The same parameters and data, with compute replaced by its measured duration."""
    measured = _measure(workload, trial, group, device) if group.rank == 0 else None
    answers = group.exchange("pace", json.dumps(measured and dataclasses.asdict(measured)))
    times = measured or ComputeTimes(**json.loads(answers[0]))
    measurements.counters["stand_in_forward_s"] = times.forward_s
    measurements.counters["stand_in_backward_s"] = times.gradient_ready_s[-1]
    measurements.counters["stand_in_optimizer_s"] = times.optimizer_s
    return paced(workload, times)


def paced(workload: Workload, times: ComputeTimes) -> Workload:
    """The workload with a model and an optimizer that sleep for the measured times."""
    parameters = trained_parameters(workload.model)
    order = [parameters[number] for number in reversed(times.ready_order)]
    pace = Pace(
        forward_s=times.forward_s,
        gradient_ready_s=tuple(times.gradient_ready_s),
        optimizer_s=times.optimizer_s,
    )

    def loss(output: Tensor, _: object) -> Tensor:
        return output

    def make_optimizer(owned: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return SleepingOptimizer(owned, pace.optimizer_s)

    model = PacedModel(workload.model, order, pace)
    return dataclasses.replace(workload, model=model, loss=loss, make_optimizer=make_optimizer)


def _measure(workload: Workload, trial: Trial, group: Group, device: torch.device) -> ComputeTimes:
    """Medians over a few plain steps, while the other ranks wait."""
    make = workload.make_optimizer or optimizer_factory(trial.options(Training))
    parameters = trained_parameters(workload.model)
    marks = StepMarks(moments_of(device))
    step = with_levers(trial, plain_step(workload, workload.model, make(iter(parameters))), device)
    step = with_ranges(step, marks.part)
    feed = build_feed(trial, workload, group, device)
    try:
        with _unchanged(workload.model), marked_gradients(parameters, marks):
            marks.begin()
            for _ in range(_WARMUPS + _MEASURED):
                step.backward(step.forward(next(feed.batches)))
                step.apply()
                step.clear()
    finally:
        feed.close()
    return compute_times(typical_step([timed_step(marked) for marked in marks.read()[_WARMUPS:]]))


def compute_times(step: TimedStep) -> ComputeTimes:
    """What ranks sleep for; clearing gradients is left out, which they do themselves."""
    return ComputeTimes(
        forward_s=step.forward_s,
        optimizer_s=step.parts_s[OPTIMIZER],
        ready_order=list(step.gradients_s),
        gradient_ready_s=list(step.gradients_s.values()),
    )


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers and random state: only rank 0 measures, and ranks must stay equal."""
    state = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in state]
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
