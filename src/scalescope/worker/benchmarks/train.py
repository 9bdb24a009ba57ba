"""The training benchmark: warm up, measure a window of steps, return raw samples."""

import importlib
from collections.abc import Iterator

import torch
from torch import nn

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.trial import Trial
from scalescope.results.heartbeat import Stage
from scalescope.worker.calibration import matmul_flops_per_s
from scalescope.worker.checksum import parameter_checksum
from scalescope.worker.faults import Fault
from scalescope.worker.group import Group
from scalescope.worker.measurements import Measurements
from scalescope.worker.position import Position
from scalescope.worker.step import OptimizerFactory, Step, Workload, run_steps
from scalescope.worker.timing import clock_for


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Train as the trial says and return what was seen; statistics are made elsewhere."""
    options = trial.options(Train)
    torch.manual_seed(trial.settings["seed"])
    workload = _build_workload(trial, device)
    step = build_step(trial, workload, device)
    generator = torch.Generator().manual_seed(trial.settings["seed"] * 65_537 + group.rank + 1)
    batches = workload.batches(trial.rank_batch_size, generator)
    found = Measurements(counters=_count_parameters(step.module))

    position.enter(Stage.WARMUP)
    warmup = clock_for(device, options.warmup_steps)
    run_steps(step, batches, options.warmup_steps, warmup, position, fault)
    found.samples["warmup_step_time_s"] = warmup.step_times_s()
    found.counters["matmul_flops_per_s_before"] = matmul_flops_per_s(device, trial.settings["precision"])
    group.barrier()
    position.enter(Stage.STEADY, slowest_warmup_s=max(warmup.step_times_s()))
    count = options.epochs * options.steps_per_epoch - options.warmup_steps
    clock = clock_for(device, count)
    losses = run_steps(step, batches, count, clock, position, fault)
    found.samples["step_time_s"] = clock.step_times_s()
    found.counters["matmul_flops_per_s_after"] = matmul_flops_per_s(device, trial.settings["precision"])
    _spoil(step, losses, fault)
    record_losses(found, losses)
    found.counters["parameter_checksum"] = parameter_checksum(step.module)
    return found


def build_step(trial: Trial, workload: Workload, device: torch.device) -> Step:
    """The training step the trial describes: workload, then strategy, then levers."""
    options = trial.options(Train)
    name = trial.settings["strategy"]
    strategy = importlib.import_module(f"scalescope.worker.strategies.{name}")
    step: Step = strategy.wrap(
        workload,
        trial.options(cards.card("strategies", name)),
        device,
        options.ablation,
        optimizer_factory(options),
    )
    for lever in cards.names("levers"):
        module = importlib.import_module(f"scalescope.worker.levers.{lever}")
        step = module.apply(step, trial.options(cards.card("levers", lever)), device)
    return step


def optimizer_factory(options: Train) -> OptimizerFactory:
    """Makes the trial's optimizer once a strategy knows which parameters it owns."""

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        if options.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=options.lr)
        return torch.optim.SGD(parameters, lr=options.lr)

    return make


def record_losses(found: Measurements, losses: list[torch.Tensor]) -> None:
    """Keep the losses; the first that is no number makes the result invalid and says where."""
    values = torch.stack(losses).float().tolist()
    bad = [number for number, value in enumerate(values) if not torch.isfinite(torch.tensor(value))]
    if bad:
        found.counters["first_bad_loss_step"] = bad[0]
    else:
        found.samples["loss"] = values


def _build_workload(trial: Trial, device: torch.device) -> Workload:
    name = trial.settings["workload"]
    module = importlib.import_module(f"scalescope.worker.workloads.{name}")
    workload: Workload = module.build(trial.options(cards.card("workloads", name)), device)
    return workload


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
