"""Floating-point operations of a model without a formula, counted on tensors without data."""

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from scalescope.worker.counting.fake_copy import empty_like, fake_copy, uncompiled
from scalescope.worker.training.step import Batch, Workload, batch_size_of

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
