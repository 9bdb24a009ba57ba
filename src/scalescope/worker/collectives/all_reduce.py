"""`all_reduce`: torch offers it in place only."""

import torch
import torch.distributed as dist

from scalescope.worker.operation import Operation, Shape
from scalescope.worker.pattern import count_wrong, sum_of, values_of


def prepare(shape: Shape) -> Operation:
    """One buffer, summed over all ranks."""
    buffer = torch.empty(shape.count, dtype=shape.dtype, device=shape.device)
    array = (0, shape.count, shape.dtype, shape.device)

    def reset() -> None:
        buffer.copy_(values_of(shape.rank, shape.ranks, *array))

    def run() -> None:
        dist.all_reduce(buffer)

    return Operation(reset=reset, run=run, wrong=lambda: count_wrong(buffer, sum_of(shape.ranks, *array)))
