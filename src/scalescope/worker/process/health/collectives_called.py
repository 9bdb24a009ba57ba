"""Records which collective a rank calls: workloads of one's own may call different ones on each rank."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalescope.results.ranks.collective_calls import CallSlot, CollectiveCall, slot_file

# By whether the first tensor has the same shape on all ranks.
_COLLECTIVES = {
    "all_reduce": True,
    "broadcast": True,
    "reduce": True,
    "all_gather": False,
    "all_gather_into_tensor": False,
    "reduce_scatter": False,
    "reduce_scatter_tensor": False,
    "all_to_all": False,
    "all_to_all_single": False,
    "barrier": False,
}


def record_collectives(directory: Path, rank: int) -> None:
    """From now on every call on the group of all ranks is written down before it is made."""
    slot, numbers = CallSlot(slot_file(directory, rank)), itertools.count(1)
    for name, has_same_shape in _COLLECTIVES.items():
        call = _recorded(name, getattr(dist, name), slot, numbers, has_same_shape=has_same_shape)
        setattr(dist, name, call)


def _recorded(
    name: str,
    collective: Callable[..., Any],
    slot: CallSlot,
    numbers: "itertools.count[int]",
    *,
    has_same_shape: bool,
) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("group") is None:  # parts of the ranks may do what the others do not
            tensor = kwargs.get("tensor", args[0] if args else None) if has_same_shape else None
            slot.write(CollectiveCall(number=next(numbers), name=name, tensor=_described(tensor)))
        return collective(*args, **kwargs)

    return call


def _described(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return ""
    return f"{list(tensor.shape)} {tensor.dtype}"
