"""`broadcast`: torch offers it in place only."""

import torch
import torch.distributed as dist

from scalescope.worker.operation import Operation, Shape
from scalescope.worker.pattern import count_wrong, values_of


def prepare(shape: Shape) -> Operation:
    """Rank 0's buffer to all."""
    buffer = torch.empty(shape.count, dtype=shape.dtype, device=shape.device)
    array = (0, shape.count, shape.dtype, shape.device)

    def reset() -> None:
        buffer.copy_(values_of(shape.rank, shape.ranks, *array))

    def run() -> None:
        dist.broadcast(buffer, src=0)

    return Operation(
        reset=reset, run=run, wrong=lambda: count_wrong(buffer, values_of(0, shape.ranks, *array))
    )
