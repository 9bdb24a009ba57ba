"""The `accumulation` lever: several batches for each exchange of gradients."""

import dataclasses

import torch
from torch import Tensor

from scalescope.catalog.levers.accumulation import Accumulation
from scalescope.worker.step import Step


def apply(step: Step, options: Accumulation, device: torch.device) -> Step:
    """The step over several batches; each loss counts for its share, so that the sum is their mean."""
    count = options.accumulation_steps
    if count == 1:
        return step

    def backward(loss: Tensor) -> None:
        step.backward(loss / count)

    return dataclasses.replace(step, backward=backward, accumulation_steps=count)
