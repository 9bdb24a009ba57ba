"""Operation: one collective with its buffers, ready to run many times."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scalescope.worker.comm.pattern import count_wrong, values_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rank, size and type of an operation; `count` is the number of elements as nccl-tests counts them."""

    rank: int
    ranks: int
    count: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool

    @property
    def part(self) -> int:
        """Elements of one rank's part of the array."""
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
    """An operation in a single buffer; `expected` returns None if the result is undefined on this rank."""
    buffer = torch.empty(shape.count, dtype=shape.dtype, device=shape.device)

    def reset() -> None:
        buffer.copy_(values_of(shape.rank, shape.ranks, 0, shape.count, shape.dtype, shape.device))

    def run_once() -> None:
        run(buffer)

    def wrong() -> int:
        result = expected()
        return 0 if result is None else count_wrong(buffer, result)

    return Operation(reset=reset, run=run_once, wrong=wrong)
