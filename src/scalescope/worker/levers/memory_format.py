"""The `memory_format` lever: images and convolutions in channels_last order."""

import dataclasses

import torch
from torch import Tensor

from scalescope.catalog.levers.memory_format import MemoryFormat
from scalescope.worker.training.step import Batch, Step, Workload, map_tensors

_IMAGE_DIMENSIONS = 4  # of a batch of images


def prepare(workload: Workload, options: MemoryFormat, device: torch.device) -> Workload:
    """The model with its convolutions in that order; before a wrapper reads their strides."""
    if options.memory_format == "channels_last":
        workload.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return workload


def apply(step: Step, options: MemoryFormat, device: torch.device) -> Step:
    """The step on batches in that order."""
    if options.memory_format != "channels_last":
        return step

    def stored(tensor: Tensor) -> Tensor:
        if tensor.dim() != _IMAGE_DIMENSIONS:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    def forward(batch: Batch) -> Tensor:
        return step.forward(map_tensors(stored, batch))

    return dataclasses.replace(step, forward=forward)
