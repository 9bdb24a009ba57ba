"""The training benchmark: warm up, measure the steps that follow, return raw samples."""

import math

import torch
from torch import nn

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.train import Train
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.heartbeat import Stage
from scalescope.worker.assembly import build_feed, build_step, build_workload
from scalescope.worker.calibration import matmul_flops_per_s
from scalescope.worker.checksum import parameter_checksum
from scalescope.worker.evaluation import Evaluation
from scalescope.worker.faults import Fault
from scalescope.worker.feeding import Feed
from scalescope.worker.group import Group
from scalescope.worker.measurements import Measurements
from scalescope.worker.position import Position
from scalescope.worker.stand_in import stand_in_for
from scalescope.worker.step import Step, run_steps
from scalescope.worker.timing import clock_for


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Train as the trial says and return what was seen; statistics are made elsewhere."""
    options = trial.options(Train)
    workload = build_workload(trial, group, device)
    found = Measurements(counters=_count_parameters(workload.model))
    if options.stand_in:
        workload = stand_in_for(workload, trial, group, device, found)
    step = build_step(trial, workload, device)
    evaluation = Evaluation(workload, trial, group, device) if options.eval else None
    feed = build_feed(trial, workload, group, device)
    try:
        losses = _train(trial, step, feed, group, device, position, fault, evaluation, found)
    finally:
        feed.close()
    _spoil(step, losses, fault)
    record_losses(found, losses)
    if cards.card("strategies", trial.settings["strategy"]).replicated:
        found.counters["parameter_checksum"] = parameter_checksum(step.module)
    return found


def _train(
    trial: Trial,
    step: Step,
    feed: Feed,
    group: Group,
    device: torch.device,
    position: Position,
    fault: Fault | None,
    evaluation: Evaluation | None,
    found: Measurements,
) -> list[torch.Tensor]:
    """Warm-up, then all other steps; with an evaluation, the clock stops after every epoch."""
    options = trial.options(Train)
    epoch_steps = _steps_of_an_epoch(options, feed, step.accumulation_steps)
    total = options.epochs * epoch_steps
    if options.warmup_steps >= total:
        raise BadInput(f"warmup_steps {options.warmup_steps} leaves nothing of the data's {total} steps")
    position.plan(total)
    position.enter(Stage.WARMUP)
    warmup = clock_for(device, options.warmup_steps)
    run_steps(step, feed.batches, options.warmup_steps, warmup, position, fault)
    found.samples["warmup_step_time_s"] = warmup.step_times_s()
    found.counters["matmul_flops_per_s_before"] = matmul_flops_per_s(device, trial.settings["precision"])
    group.barrier()
    position.enter(Stage.STEADY, slowest_warmup_s=max(warmup.step_times_s()))
    losses: list[torch.Tensor] = []
    times: list[float] = []
    samples = 0
    for end in range(epoch_steps, total + 1, epoch_steps) if evaluation else (total,):
        count = end - max(options.warmup_steps, end - epoch_steps if evaluation else 0)
        if count > 0:
            clock = clock_for(device, count)
            stretch = run_steps(step, feed.batches, count, clock, position, fault)
            times += clock.step_times_s()
            losses += stretch.losses
            samples += stretch.samples
        if evaluation is not None:
            evaluation.look(position, found)
            group.barrier()
    found.samples["step_time_s"] = times
    found.samples["epoch_time_s"] = _epoch_times([*warmup.step_times_s(), *times], epoch_steps)
    found.counters |= {"measured_samples": samples, "epoch_steps": epoch_steps}
    found.counters["matmul_flops_per_s_after"] = matmul_flops_per_s(device, trial.settings["precision"])
    return losses


def _steps_of_an_epoch(options: Train, feed: Feed, accumulation_steps: int) -> int:
    if options.steps_per_epoch is not None:
        return options.steps_per_epoch
    if feed.epoch_batches is None:
        raise BadInput("steps_per_epoch all: this data has no known length; give a number")
    return math.ceil(feed.epoch_batches / accumulation_steps)


def _epoch_times(step_times_s: list[float], epoch_steps: int) -> list[float]:
    """Time of every epoch, its first steps included: warm-up is work too."""
    starts = range(0, len(step_times_s), epoch_steps)
    return [math.fsum(step_times_s[start : start + epoch_steps]) for start in starts]


def record_losses(found: Measurements, losses: list[torch.Tensor]) -> None:
    """Keep the losses; the first that is no number makes the result invalid and says where."""
    values = torch.stack(losses).float().tolist()
    bad = [number for number, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        found.counters["first_bad_loss_step"] = bad[0]
    else:
        found.samples["loss"] = values


def _count_parameters(module: nn.Module) -> dict[str, float | int | str | None]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(parameter.numel() for parameter in trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def _spoil(step: Step, losses: list[torch.Tensor], fault: Fault | None) -> None:
    if fault is None:
        return
    if fault.spoils("nan"):
        losses[-1] = torch.full_like(losses[-1], float("nan"))
    if fault.spoils("diverge"):
        with torch.no_grad():
            next(step.module.parameters()).add_(1.0)
