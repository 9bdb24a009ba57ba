"""Stand-ins: with more ranks than cores, all sleep for the compute times that rank 0 measured alone."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalescope.catalog.training import Training
from scalescope.experiment.trial import Trial
from scalescope.results.traces.events import OPTIMIZER
from scalescope.worker.process.group import Group
from scalescope.worker.rank_profile.marks import StepMarks, marked_gradients, trained_parameters
from scalescope.worker.rank_profile.moments import moments_of
from scalescope.worker.rank_profile.timed_steps import TimedStep, timed_step, typical_step
from scalescope.worker.training.assembly import build_feed, optimizer_factory, with_levers
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.pacing import Pace, PacedModel, SleepingOptimizer
from scalescope.worker.training.ranges import with_ranges
from scalescope.worker.training.step import Workload, plain_step

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
