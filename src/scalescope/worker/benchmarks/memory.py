"""The memory benchmark: the memory of a training step on this rank, measured and forecast."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

import torch

from scalescope.catalog.benchmarks.memory import WARMUP_STEPS, Memory
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import Phase, RankStage
from scalescope.worker.memory.allocator import BACKWARD, FORWARD
from scalescope.worker.memory.forecast import ForecastJob, forecast
from scalescope.worker.memory.measured import (
    DataLimit,
    DeviceGauge,
    ResidentGauge,
    gradients_of,
    held_bytes,
    state_of,
    tensors_in,
)
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.health import is_out_of_memory
from scalescope.worker.process.position import Position
from scalescope.worker.training.assembly import build_feed, build_step, build_workload
from scalescope.worker.training.measurements import Measurements, explained
from scalescope.worker.training.step import Batch, Batches, Step, Workload, batch_size_of

_SLOWEST_STEP_S = (
    60.0  # a step that fills the memory may take long, and there is no earlier one to compare with
)
Take = Callable[[], Batch]


class Gauge(Protocol):
    """Measures the memory of one kind of device."""

    def before_model(self) -> None: ...
    def room(self) -> int | None: ...
    def after_model(self) -> None: ...
    def before_steps(self) -> None: ...
    def begin_step(self) -> None: ...
    def begin_phase(self, name: str) -> None: ...
    def end_backward(self, step: Step) -> None: ...
    def end_step(self) -> None: ...
    def counters(self) -> dict[str, float | int | str | None]: ...


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Bytes by category; for a search, only the peak of a batch that fits."""
    options = trial.options(Memory)
    gauge: Gauge = DeviceGauge(device) if device.type == "cuda" else ResidentGauge(device)
    gauge.before_model()
    with _limited(options.memory_limit, device) as lifted:
        return _measure(trial, group, device, position, fault, gauge, lifted)


def _measure(
    trial: Trial,
    group: Group,
    device: torch.device,
    position: Position,
    fault: Fault | None,
    gauge: Gauge,
    lifted: Callable[[], AbstractContextManager[None]],
) -> Measurements:
    searching = trial.purpose == "search"
    measurements = Measurements()
    position.plan(trial.steps)
    position.enter(RankStage.WARMUP)  # creating a batch that fills a GPU may take minutes
    workload = build_workload(trial, group, device)
    measurements.counters |= workload.counters
    feed = build_feed(trial, workload, group, device)
    try:
        batch = next(feed.batches)
        gauge.after_model()
        take = partial(next_whole, feed.batches, batch_size_of(batch))
        resident_batches = _resident_batches(trial, workload)
        measurements.counters |= _shortage(trial, workload, batch)
        if not searching and group.rank == 0:
            job = ForecastJob(
                trial=trial, workload=workload, batch=batch, batches=resident_batches, device=device
            )
            with lifted():
                measurements.counters |= forecast(job, trial.memory_limit or gauge.room())
        gauge.before_steps()
        step = build_step(trial, workload, device)
        with explained(step, feed.batches, position):
            for _ in range(WARMUP_STEPS):
                _take_step(step, take, position, fault, gauge if device.type == "cpu" else None)
        position.enter(RankStage.STEADY, slowest_warmup_s=_SLOWEST_STEP_S)
        if not searching:
            measurements.counters |= _measure_step(step, take, position, fault, gauge, device)
            measurements.counters["measured/inputs"] = resident_batches * held_bytes(
                tensors_in(batch), device
            )
        measurements.counters |= gauge.counters()
    finally:
        feed.close()
    if not trial.strategy_card.has_separate_backward or workload.own_step is not None:
        measurements.counters["measured/activations"] = None
    return measurements


def _shortage(trial: Trial, workload: Workload, batch: Batch) -> dict[str, int]:
    """The number of samples, if the data set has fewer than the batch size; and how many each rank has."""
    if workload.data.synthesize is not None:
        return {}
    samples, there = batch_size_of(batch), workload.data.samples
    counters = {"data/samples": samples} if samples < trial.micro_batch_size else {}
    if hasattr(there, "__getitem__") and hasattr(there, "__len__"):
        counters["data/samples_per_rank"] = -(-len(there) // trial.replicas)
    return counters


def next_whole(batches: Batches, samples: int) -> Batch:
    """The next full batch: skips a short one, which ends an epoch; of two short ones, the second is used."""
    batch = next(batches)
    return next(batches) if batch_size_of(batch) < samples else batch


def _resident_batches(trial: Trial, workload: Workload) -> int:
    """How many batches are on the device: synthetic ones are made once and kept."""
    kept = workload.data.synthesize is not None and trial.num_workers is None
    return 2 if kept else 1


def _take_step(
    step: Step, take: Take, position: Position, fault: Fault | None, gauge: Gauge | None = None
) -> dict[str, int]:
    """One step that reports the start of its phases; returns the bytes of the gradients."""
    position.begin_step()
    if fault is not None:
        fault.at_step(position.begun - 1)
    if step.is_whole:  # a user's own step has no phases
        position.mark(Phase.FORWARD)
        step.forward(take())
        step.clear()
        position.completed += 1
        return {}
    for remaining in range(step.accumulation_steps, 0, -1):
        with nullcontext() if remaining == 1 else step.no_sync():
            batch = take()
            position.mark(Phase.FORWARD)
            if gauge is not None:
                gauge.begin_phase(FORWARD)
            loss = step.forward(batch)
            position.mark(Phase.BACKWARD)
            if gauge is not None:
                gauge.begin_phase(BACKWARD)
            step.backward(loss / step.accumulation_steps)
    position.mark(Phase.OPTIMIZER)
    sizes: dict[str, int] = {}
    if gauge is not None:
        gauge.begin_phase("optimizer")
        gauge.end_backward(step)
        sizes["measured/gradients"] = held_bytes(gradients_of(step.module), loss.device)
    step.apply()
    step.clear()
    position.completed += 1
    return sizes


def _measure_step(
    step: Step, take: Take, position: Position, fault: Fault | None, gauge: Gauge, device: torch.device
) -> dict[str, float | int | str | None]:
    """The measured step, and the memory that stays allocated after it."""
    gauge.begin_step()
    sizes = _take_step(step, take, position, fault, gauge)
    gauge.end_step()
    return {
        **sizes,
        "measured/parameters": held_bytes(step.module.parameters(), device),
        "measured/buffers": held_bytes(step.module.buffers(), device),
        "measured/optimizer": held_bytes(
            [tensor for optimizer in step.optimizers for tensor in state_of(optimizer)], device
        ),
    }


@contextlib.contextmanager
def _limited(limit: int | None, device: torch.device) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Limit this rank's memory; yields a function that lifts the limit temporarily."""
    if limit is None:
        yield nullcontext
    elif device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        taken = torch.cuda.memory_reserved(device)  # by libraries; the limit is for what follows
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + taken) / total), device)
        try:
            yield nullcontext
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    else:
        data = DataLimit(limit)
        try:
            with data.held():
                yield data.lifted
        except RuntimeError as error:
            if is_out_of_memory(error, under_limit=True):
                raise MemoryError(str(error).splitlines()[0]) from error
            raise
