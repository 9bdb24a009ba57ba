"""Operation: one collective on buffers of its own, ready to be run many times."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scalescope.worker.comm.pattern import count_wrong, values_of


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


def on_one_buffer(
    shape: Shape, run: Callable[[Tensor], object], expected: Callable[[], Tensor | None]
) -> Operation:
    """An operation inside a single buffer; `expected` gives None where the result is left undefined."""
    buffer = torch.empty(shape.count, dtype=shape.dtype, device=shape.device)

    def reset() -> None:
        buffer.copy_(values_of(shape.rank, shape.ranks, 0, shape.count, shape.dtype, shape.device))

    def run_once() -> None:
        run(buffer)

    def wrong() -> int:
        right = expected()
        return 0 if right is None else count_wrong(buffer, right)

    return Operation(reset=reset, run=run_once, wrong=wrong)
