"""The `gradient_clipping` lever: gradients are clipped before the optimizer uses them."""

import dataclasses

import torch

from scalescope.catalog.levers.gradient_clipping import GradientClipping
from scalescope.worker.training.step import Step


def apply(step: Step, options: GradientClipping, device: torch.device) -> Step:
    """The step with one more operation before the update."""
    clip_norm = options.clip_norm
    if clip_norm is None:
        return step

    def clip_and_apply() -> None:
        torch.nn.utils.clip_grad_norm_(step.module.parameters(), clip_norm)
        step.apply()

    return dataclasses.replace(step, apply=clip_and_apply)
