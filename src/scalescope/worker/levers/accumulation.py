"""The `accumulation` lever: several batches for each exchange of gradients."""

import dataclasses

import torch

from scalescope.catalog.levers.accumulation import Accumulation
from scalescope.worker.training.step import Step


def apply(step: Step, options: Accumulation, device: torch.device) -> Step:
    """The step over several batches."""
    return dataclasses.replace(step, accumulation_steps=options.accumulation_steps)
