"""Floating-point operations of a model that nobody has a formula for, counted without computing them."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from scalescope.worker.fake_copy import empty_like, fake_copy
from scalescope.worker.step import Batch, Workload, batch_size_of


def count_flops_per_sample(workload: Workload, batch: Batch, device: torch.device) -> float | None:
    """Operations of forward and backward for a sample of this batch; None where they cannot be counted.

    A model that looks at its own numbers, or leaves PyTorch, cannot be run on tensors without data.
    """
    try:
        mode, copied = fake_copy(workload)
        with mode, FlopCounterMode(display=False) as counter:
            copied.loss_of(copied.model, empty_like(batch, device)).backward()
    except Exception:
        return None
    return counter.get_total_flops() / batch_size_of(batch) or None  # none at all: they were not seen
