"""Stand-ins: with more ranks than cores, all sleep for the compute times that rank 0 measured alone."""

import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from scalescope.catalog.training import Training
from scalescope.experiment.trial import Trial
from scalescope.worker.process.group import Group
from scalescope.worker.training.assembly import build_feed, optimizer_factory, with_levers
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.pacing import Pace, PacedModel, SleepingOptimizer
from scalescope.worker.training.step import Batch, Step, Workload, plain_step

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


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _measure(workload: Workload, trial: Trial, group: Group, device: torch.device) -> ComputeTimes:
    """Medians over a few plain steps, while the other ranks wait."""
    make = workload.make_optimizer or optimizer_factory(trial.options(Training))
    optimizer = make(iter(trained_parameters(workload.model)))
    step = with_levers(trial, plain_step(workload, workload.model, optimizer), device)
    feed = build_feed(trial, workload, group, device)
    try:
        with _unchanged(workload.model), gradient_times(workload.model) as ready:
            timed = [_timed_step(step, next(feed.batches), ready) for _ in range(_WARMUPS + _MEASURED)]
    finally:
        feed.close()
    return summarise(timed[_WARMUPS:])


@dataclass(kw_only=True)
class TimedStep:
    """The times of one step; gradients by the index of their parameter, from the start of backward."""

    forward_s: float
    optimizer_s: float
    gradient_ready_s: dict[int, float] = field(default_factory=dict)


def _timed_step(step: Step, batch: Batch, ready: dict[int, float]) -> TimedStep:
    ready.clear()
    began = time.perf_counter()
    loss = step.forward(batch)
    forward_ended = time.perf_counter()
    step.backward(loss)
    backward_ended = time.perf_counter()
    step.apply()
    ended = time.perf_counter()
    step.clear()
    return TimedStep(
        forward_s=forward_ended - began,
        optimizer_s=ended - backward_ended,
        gradient_ready_s={number: moment - forward_ended for number, moment in ready.items()},
    )


def summarise(steps: list[TimedStep]) -> ComputeTimes:
    """Medians of several steps, over the parameters that got a gradient in all of them."""
    numbers = set.intersection(*(set(step.gradient_ready_s) for step in steps))
    after = {
        number: statistics.median(step.gradient_ready_s[number] for step in steps)
        for number in sorted(numbers)
    }
    order = sorted(after, key=lambda number: after[number])
    return ComputeTimes(
        forward_s=statistics.median(step.forward_s for step in steps),
        optimizer_s=statistics.median(step.optimizer_s for step in steps),
        ready_order=order,
        gradient_ready_s=[after[number] for number in order],
    )


@contextlib.contextmanager
def gradient_times(model: nn.Module) -> Iterator[dict[int, float]]:
    """Records when each trained parameter, by index, has its gradient."""
    moments: dict[int, float] = {}

    def record(number: int) -> None:
        moments[number] = time.perf_counter()

    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: record(number))
        for number, parameter in enumerate(trained_parameters(model))
    ]
    try:
        yield moments
    finally:
        for handle in handles:
            handle.remove()


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
