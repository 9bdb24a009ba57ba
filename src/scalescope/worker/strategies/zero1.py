"""The `zero1` strategy: DDP whose optimizer is PyTorch's ZeroRedundancyOptimizer."""

import dataclasses
from typing import Any, cast

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from scalescope.catalog.strategies.zero1 import Zero1
from scalescope.worker.ablations.local_update import keep_update_local
from scalescope.worker.strategies.ddp import add_comm_hook, step_of, wrapped_in_ddp
from scalescope.worker.training.optimizer_hooks import move_hooks
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
    optimizer = ZeroRedundancyOptimizer(
        workload.model.parameters(),
        optimizer_class=cast(Any, _class_of(make_optimizer)),
    )
    # On the outer optimizer they see all parameters, as without sharding, and not only this rank's.
    move_hooks(optimizer.optim, optimizer)
    if without_communication:
        keep_update_local(optimizer)
    return step_of(workload, wrapped, optimizer, options, silent)


def _class_of(make_optimizer: OptimizerFactory) -> Any:
    """A function that is called like an optimizer class, with this rank's part of the parameter group."""

    def make(groups: list[dict[str, Any]], **defaults: Any) -> torch.optim.Optimizer:
        (group,) = groups
        return make_optimizer(iter(group["params"]))

    return make
