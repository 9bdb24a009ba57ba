"""Inputs with an exactly known result in every element type, for any order of summation."""

import torch
from torch import Tensor

# The largest integer up to which all integers are exact.
_EXACT = {torch.bfloat16: 256, torch.float16: 2048, torch.int8: 127, torch.uint8: 255}


def values_of(
    rank: int, ranks: int, begin: int, count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """What `rank` contributes to elements begin … begin + count of the whole array."""
    positions = torch.arange(begin, begin + count, device=device)
    if 3 * ranks <= _EXACT.get(dtype, 1 << 24):
        # Integers that repeat neither over positions nor over ranks, to detect data at a wrong position.
        return ((positions * (rank + 1) + positions // (rank + 2) + rank) % 4).to(dtype)
    return ((positions + rank) % ranks == 0).to(dtype)  # with so many ranks, only ones and zeros stay exact


def sum_of(ranks: int, begin: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The exact sum of all ranks' contributions."""
    total = torch.zeros(count, dtype=torch.int64, device=device)
    for rank in range(ranks):
        total += values_of(rank, ranks, begin, count, dtype, device).to(torch.int64)
    return total.to(dtype)


def count_wrong(actual: Tensor, expected: Tensor) -> int:
    """How many elements differ; NaN differs from everything."""
    return int((actual != expected).sum().item())
