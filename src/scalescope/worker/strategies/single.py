"""The `single` strategy: the model without a wrapper."""

import torch

from scalescope.catalog.strategies.single import Single
from scalescope.worker.training.own_step import own_models, own_optimizers, whole_step
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


def wrap_own_step(
    workload: Workload,
    options: Single,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """The user's own step with the models as they are."""
    return whole_step(workload, own_models(workload), own_optimizers(workload, make_optimizer))
