"""The `single` strategy: the model without a wrapper."""

import torch

from scalescope.catalog.strategies.single import Single
from scalescope.worker.training.step import OptimizerFactory, Step, Workload, plain_step


def wrap(
    workload: Workload,
    options: Single,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A plain training step; there is nothing to ablate."""
    return plain_step(workload, workload.model, make_optimizer(workload.model.parameters()))
