"""Operation: one collective on buffers of its own, ready to be run many times."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an operation is built for; `count` elements is the size nccl-tests would name."""

    rank: int
    ranks: int
    count: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool

    @property
    def part(self) -> int:
        """Elements of one rank's part, where the array is shared out."""
        return self.count // self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`reset` fills the inputs, `run` does the collective, `wrong` counts bad elements afterwards."""

    reset: Callable[[], None]
    run: Callable[[], None]
    wrong: Callable[[], int]
