"""Copies of models and batches without data, to count what a real step would need."""

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from scalescope.worker.training.step import Batch, Workload


def fake_copy(workload: Workload) -> tuple[Any, Workload]:
    """A mode that computes nothing, and a copy of the workload for that mode.

    The loss is copied too, and still shares with the model what it shared before. A function that holds real
    tensors fails when it is called: counting must not change real tensors.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=False)
    with FakeCopyMode(mode):
        model, loss = copy.deepcopy((workload.model, workload.loss))
    return mode, dataclasses.replace(workload, model=model, loss=loss)


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions as they are written: the compiler would give up on them under a counting mode,
    and for good."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and loading the compiler takes seconds
        return contextlib.nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def empty_like(batch: Batch, device: torch.device, times: int = 1) -> Batch:
    """A batch of the same shapes with `times` as many samples; fake tensors hold no data."""
    if isinstance(batch, Tensor):
        shape = batch.shape if times == 1 else (len(batch) * times, *batch.shape[1:])
        return torch.empty(shape, dtype=batch.dtype, device=device)
    if isinstance(batch, Mapping):
        return {name: empty_like(part, device, times) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(empty_like(part, device, times) for part in batch)
    return batch
