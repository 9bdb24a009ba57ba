"""The `memory_format` lever: pictures and convolutions with the colours together."""

import dataclasses

import torch
from torch import Tensor

from scalescope.catalog.levers.memory_format import MemoryFormat
from scalescope.worker.training.step import Batch, Step, Workload, map_tensors

_PICTURE = 4  # dimensions of a batch of pictures


def prepare(workload: Workload, options: MemoryFormat, device: torch.device) -> Workload:
    """The model with its convolutions stored that way; before a wrapper looks at their strides."""
    if options.memory_format == "channels_last":
        workload.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return workload


def apply(step: Step, options: MemoryFormat, device: torch.device) -> Step:
    """The step on batches stored that way."""
    if options.memory_format != "channels_last":
        return step

    def stored(tensor: Tensor) -> Tensor:
        if tensor.dim() != _PICTURE:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    def forward(batch: Batch) -> Tensor:
        return step.forward(map_tensors(stored, batch))

    return dataclasses.replace(step, forward=forward)
