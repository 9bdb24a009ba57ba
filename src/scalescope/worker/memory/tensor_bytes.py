"""Bytes of tensors: every storage counted once; for a sharded tensor, the local part."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def storages(tensors: Iterable[Any], device: torch.device) -> dict[int, int]:
    """Bytes of the tensors' storages on the device, by address."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own part
        if isinstance(local, Tensor) and local.device.type == device.type:
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def held_bytes(tensors: Iterable[Any], device: torch.device) -> int:
    """Total bytes of all storages."""
    return sum(storages(tensors, device).values())


def gradients_of(module: nn.Module) -> list[Tensor]:
    """The gradients that exist now."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that an optimizer keeps between steps; for a sharded one, those of this rank."""
    local = getattr(
        optimizer, "optim", optimizer
    )  # ZeroRedundancyOptimizer wraps the optimizer that has the state
    kept = [value for state in local.state.values() for value in state.values()]
    return [value for value in kept if isinstance(value, Tensor)]


def tensors_in(batch: Any) -> list[Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for part in batch.values() for tensor in tensors_in(part)]
    if isinstance(batch, tuple | list):
        return [tensor for part in batch for tensor in tensors_in(part)]
    return []
