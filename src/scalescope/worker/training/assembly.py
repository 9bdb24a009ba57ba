"""Assembly: combines the workload, strategy and levers of a trial."""

import dataclasses
import hashlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from scalescope.catalog import cards
from scalescope.catalog.levers.copying import Copying
from scalescope.catalog.levers.input import Input
from scalescope.catalog.training import Training
from scalescope.errors import BadInput
from scalescope.experiment.explanations import NO_COMM, NO_OPTIMIZER, PRELOADED, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.worker.machine.model_room import check_model, room_of
from scalescope.worker.process.group import Group
from scalescope.worker.training.feeding import Feed, InputOptions, Shard, feed, preloaded
from scalescope.worker.training.optimizers import GivenOptimizer, OptimizerRebuild
from scalescope.worker.training.own_step import WRAP, arranged, members_of, refuse_parts, skip_update
from scalescope.worker.training.step import BuildContext, OptimizerFactory, OwnStep, Step, Workload

_FUSED = {"fused": True, "foreach": False}


def build_workload(trial: Trial, group: Group, device: torch.device) -> Workload:
    """The trial's model, data and loss, the same on every rank."""
    card = trial.workload_card
    module = importlib.import_module(card.__module__.replace(".catalog.", ".worker."))
    torch.manual_seed(trial.settings["seed"])
    shard = shard_of(trial, group)
    context = BuildContext(
        reference=trial.workload,
        rank=shard.index,
        world_size=shard.count,
        batch_size=trial.micro_batch_size,
        corpus=_corpus(trial),
    )
    workload: Workload = module.build(trial.options(card), device, context)
    refuse_parts(trial, workload, _strategy_of(trial))
    check_model(workload.model, trial, room_of(os.environ))
    _check_same_on_all_ranks(workload.model, group)
    return workload


def _corpus(trial: Trial) -> Any:
    """The texts to train on; None for data that is not a corpus."""
    card = cards.card("data", trial.data)
    if not card.has_corpus:
        return None
    module = importlib.import_module(f"scalescope.worker.data.{trial.data}")
    return module.load(trial.options(card))


def _check_same_on_all_ranks(model: nn.Module, group: Group) -> None:
    """Averaging gradients of different models would hang or compute nonsense."""
    shapes = [
        (name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in model.named_parameters()
    ]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
    total = sum(parameter.numel() for parameter in model.parameters())
    summary = f"{len(shapes)} parameters of {total:,} elements"
    for other, published in group.exchange("model", f"{digest} {summary}").items():
        if published.partition(" ")[0] != digest:
            raise BadInput(
                f"the model differs between ranks: rank {group.rank} has {summary}, "
                f"rank {other} has {published.partition(' ')[2]}"
            )


def build_step(trial: Trial, workload: Workload, device: torch.device) -> Step:
    """The training step the trial describes: workload, then strategy, then levers."""
    return with_levers(trial, bare_step(trial, workload, device), device)


def bare_step(trial: Trial, workload: Workload, device: torch.device) -> Step:
    """The step without the levers that change steps."""
    for module, options in _levers(trial):
        if hasattr(module, "prepare"):
            workload = module.prepare(workload, options, device)
    training = trial.options(Training)
    if workload.own_step is not None and training.fused_optimizer:
        workload = dataclasses.replace(workload, own_step=_with_fused_optimizers(workload.own_step))
    wrap = getattr(_strategy_of(trial), "wrap" if workload.own_step is None else WRAP)
    step: Step = wrap(
        workload,
        trial.options(trial.strategy_card),
        device,
        has_ablation(trial, NO_COMM),
        _factory_of(workload, training),
    )
    return step


def _strategy_of(trial: Trial) -> Any:
    return importlib.import_module(f"scalescope.worker.strategies.{trial.strategy}")


def _without_optimizer(step: Step) -> Step:
    """The step without an update of the parameters."""
    if not step.is_whole:
        return dataclasses.replace(step, apply=_nothing)
    for optimizer in step.optimizers:
        skip_update(optimizer)
    return step


def _nothing() -> None:
    """In place of an update of the parameters."""


def with_levers(trial: Trial, step: Step, device: torch.device) -> Step:
    """The step as the trial's levers change it."""
    for module, options in _levers(trial):
        if hasattr(module, "apply"):
            step = module.apply(step, options, device)
    return _without_optimizer(step) if has_ablation(trial, NO_OPTIMIZER) else step


def _levers(trial: Trial) -> Iterator[tuple[Any, Any]]:
    """(implementation, options) of every lever: `prepare` changes the workload, `apply` the step."""
    for name in cards.names("levers"):
        module = importlib.import_module(f"scalescope.worker.levers.{name}")
        yield module, trial.options(cards.card("levers", name))


def _factory_of(workload: Workload, options: Training) -> OptimizerFactory:
    """The workload's own optimizer where it brings one, fused where that is asked for; else the trial's."""
    make = workload.make_optimizer
    if make is None:
        return optimizer_factory(options)
    return _fused_factory(make) if options.fused_optimizer else make


def _fused_factory(make: OptimizerFactory) -> OptimizerFactory:
    if isinstance(make, OptimizerRebuild):
        _check_has_fused(make.kind, make.options)
        return make.with_options(**_FUSED)
    return lambda parameters: _fused(make(parameters))


def _with_fused_optimizers(step: OwnStep) -> OwnStep:
    """The user's own step with its optimizers fused; that of the settings is fused by them."""

    def fuse(optimizer: Any) -> Any:
        if isinstance(optimizer, GivenOptimizer):
            _fused(optimizer.optimizer)
            return optimizer
        return None if optimizer is None else _fused_factory(optimizer)

    fused = [fuse(optimizer) for optimizer in members_of(step.optimizers)]
    return dataclasses.replace(step, optimizers=arranged(step.optimizers, fused))


def _fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer with all updates in one kernel, as `fused=True` makes it."""
    _check_has_fused(type(optimizer), optimizer.defaults)
    for group in (optimizer.defaults, *optimizer.param_groups):
        group.update(_FUSED)
    return optimizer


def _check_has_fused(kind: type, options: Mapping[str, Any]) -> None:
    if "fused" not in options:
        raise BadInput(f"fused_optimizer: the workload's {kind.__name__} has no fused version")


def optimizer_factory(options: Training) -> OptimizerFactory:
    """Creates the trial's optimizer once the strategy knows which parameters it owns."""

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.SGD
        return kind(parameters, lr=options.lr, fused=options.fused_optimizer or None)

    return make


def build_feed(trial: Trial, workload: Workload, group: Group, device: torch.device) -> Feed:
    """The stream of batches this rank trains on."""
    seed = int(trial.settings["seed"])
    shard = shard_of(trial, group)
    input_options = InputOptions(loader=trial.options(Input), copying=trial.options(Copying))
    source = feed(workload.data, trial.micro_batch_size, input_options, device, shard, seed)
    return preloaded(source) if has_ablation(trial, PRELOADED) else source


def shard_of(trial: Trial, group: Group) -> Shard:
    """This rank's part of the samples; all ranks of a pipeline have the same part."""
    return Shard(index=group.rank % trial.replicas, count=trial.replicas)
