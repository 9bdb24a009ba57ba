"""Copies of models and batches that hold no data: to count on them what a real step would take."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from scalescope.worker.training.step import Batch, Workload


def fake_copy(workload: Workload) -> tuple[Any, Workload]:
    """A mode under which nothing is computed, and the workload as that mode sees it.

    The loss is copied along, sharing with the model what it shared before. A function that holds tensors is
    refused when it is called: real tensors must not be touched by what is only counted.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=False)
    with FakeCopyMode(mode):
        model, loss = copy.deepcopy((workload.model, workload.loss))
    return mode, dataclasses.replace(workload, model=model, loss=loss)


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
