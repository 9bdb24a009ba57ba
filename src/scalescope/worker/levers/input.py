"""The `input` lever: it acts where batches are made (`worker/feeding.py`), not on the step."""

import torch

from scalescope.catalog.levers.input import Input
from scalescope.worker.step import Step


def apply(step: Step, options: Input, device: torch.device) -> Step:
    """The step as it is."""
    return step
