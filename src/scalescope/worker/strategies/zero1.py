"""The `zero1` strategy: DDP whose optimizer is PyTorch's ZeroRedundancyOptimizer."""

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from scalescope.catalog.strategies.zero1 import Zero1
from scalescope.worker.ablations import keep_update_local
from scalescope.worker.strategies.ddp import (
    add_comm_hook,
    own_step_of_models,
    step_of,
    wrapped_in_ddp,
    wrapped_models,
)
from scalescope.worker.training.optimizers import OptimizerRebuild, move_hooks
from scalescope.worker.training.own_step import own_optimizers
from scalescope.worker.training.step import OptimizerFactory, Step, Workload


def wrap(
    workload: Workload,
    options: Zero1,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step that averages gradients like DDP and updates only this rank's parameters."""
    if without_communication:  # buffers would still be broadcast, as in ddp
        options = dataclasses.replace(options, broadcast_buffers=False)
    wrapped = wrapped_in_ddp(workload.model, options, device)
    silent = add_comm_hook(wrapped, options, device, without_communication)
    optimizer = _sharded(make_optimizer, workload.model.parameters())
    if without_communication:
        keep_update_local(optimizer)
    return step_of(workload, wrapped, optimizer, options, silent)


def wrap_own_step(
    workload: Workload,
    options: Zero1,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """The user's own step with models inside DDP and each optimizer sharded separately."""
    wrapped, silent = wrapped_models(workload, options, device, without_communication)
    optimizers = []
    for whole in own_optimizers(workload, make_optimizer):
        rebuild = OptimizerRebuild.of(whole, workload.model)
        held = [parameter for group in whole.param_groups for parameter in group["params"]]
        sharded = _sharded(rebuild, iter(held))
        if without_communication:
            keep_update_local(sharded)
        whole.param_groups = sharded.param_groups  # a user's scheduler changes these
        vars(whole)["_opt_called"] = True  # and warns if this one never stepped
        optimizers.append(sharded)
    return own_step_of_models(workload, wrapped, optimizers, options, silent)


def _sharded(make_optimizer: OptimizerFactory, parameters: Iterator[nn.Parameter]) -> ZeroRedundancyOptimizer:
    """An optimizer of all parameters that has the state of this rank's."""
    optimizer = ZeroRedundancyOptimizer(
        make_optimizer.grouped(parameters) if isinstance(make_optimizer, OptimizerRebuild) else parameters,
        optimizer_class=cast(Any, _class_of(make_optimizer)),
    )
    # On the outer optimizer they see all parameters, as without sharding, and not only this rank's.
    move_hooks(optimizer.optim, optimizer)
    return optimizer


def _class_of(make_optimizer: OptimizerFactory) -> Any:
    """A function that is called like an optimizer class, with this rank's part of the parameter group."""

    def make(groups: list[dict[str, Any]], **defaults: Any) -> torch.optim.Optimizer:
        if isinstance(make_optimizer, OptimizerRebuild):
            return make_optimizer.of_groups(groups)
        (group,) = groups
        return make_optimizer(iter(group["params"]))

    return make
