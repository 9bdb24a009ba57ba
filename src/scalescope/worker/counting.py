"""Operations of a model counted without data."""

import contextlib
import copy
import dataclasses
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from scalescope.worker.training.step import Batch, Workload, batch_size_of

# ---- Copies of models and batches without data, to count what a real step would need


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


# ---- Floating-point operations of a model without a formula, counted on tensors without data


# Operations that contain products. Any of them unknown to the counter would make the count too small.
_COSTLY = re.compile(r"attention|_rnn|lstm|\bgru|convolution|\b(mm|addmm|bmm|baddbmm|linear|matmul|einsum)\b")


def count_flops_per_sample(workload: Workload, batch: Batch, device: torch.device) -> float | None:
    """Operations of forward and backward per sample of this batch; None if they cannot be counted.

    A model that reads its own values, or calls code outside PyTorch, cannot run on tensors without data.
    None is also better than a count that misses a costly operation.
    """
    uncounted = _UncountedOperations()
    try:
        mode, copied = fake_copy(workload)
        with uncompiled(), mode, uncounted, FlopCounterMode(display=False) as counter:
            copied.loss_of(copied.model, empty_like(batch, device)).backward()
    except Exception:
        return None
    if uncounted.names:
        return None
    return counter.get_total_flops() / batch_size_of(batch) or None  # zero: the operations were not visible


class _UncountedOperations(TorchDispatchMode):
    """Collects the names of costly operations that the counter does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        if packet not in flop_registry and _COSTLY.search(str(packet)):
            self.names.add(str(packet))
        return func(*args, **(kwargs or {}))
