"""Checksum of replicated parameters, which must be equal on all ranks."""

import torch
from torch import nn

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def parameter_checksum(module: nn.Module) -> str:
    """Sum over the bits of all parameters, weighted by their position in the model."""
    total = 0
    with torch.no_grad():
        for position, parameter in enumerate(module.parameters(), start=1):
            bits = parameter.detach().contiguous().view(_WHOLE[parameter.element_size()])
            total += position * int(bits.sum(dtype=torch.int64).item())
    return f"{total % 2**64:016x}"
