"""Copies of models and batches that hold no data: to count on them what a real step would take."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scalescope.worker.step import Batch


def fake_copy(model: nn.Module) -> tuple[Any, nn.Module]:
    """A mode under which nothing is computed, and the model as that mode sees it."""
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(mode):
        return mode, copy.deepcopy(model)


def empty_like(batch: Batch, device: torch.device, times: int = 1) -> Batch:
    """A batch of the same shapes with so many times the samples; as fake tensors it holds no data."""
    if isinstance(batch, Tensor):
        shape = batch.shape if times == 1 else (len(batch) * times, *batch.shape[1:])
        return torch.empty(shape, dtype=batch.dtype, device=device)
    if isinstance(batch, Mapping):
        return {name: empty_like(part, device, times) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(empty_like(part, device, times) for part in batch)
    return batch
