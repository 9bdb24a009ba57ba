"""The `flat_ddp` strategy: gradients are averaged in one flat tensor after backward."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalescope.catalog.strategies.flat_ddp import FlatDdp
from scalescope.worker.training.step import OptimizerFactory, Step, Workload, plain_step


def wrap(
    workload: Workload,
    options: FlatDdp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step whose backward ends with the mean gradient of all ranks."""
    model = workload.model
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    step = plain_step(workload, model, make_optimizer(model.parameters()))
    synchronises = True

    @contextmanager
    def no_sync() -> Iterator[None]:  # around all batches of a step but the last
        nonlocal synchronises
        synchronises = False
        yield
        synchronises = True

    def backward(loss: Tensor) -> None:
        step.backward(loss)
        if synchronises:
            average_gradients(model, sends=not without_communication)

    return dataclasses.replace(step, backward=backward, no_sync=no_sync)


def average_gradients(model: nn.Module, *, sends: bool) -> None:
    """Replace every gradient by its mean over all ranks; the ablation does everything but send."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]).div_(dist.get_world_size())
    if sends:
        dist.all_reduce(flat)
    pieces = flat.split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
