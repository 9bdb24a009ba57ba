"""`reduce`: torch has it in place only."""

import torch.distributed as dist
from torch import Tensor

from scalescope.worker.comm.operation import Operation, Shape, on_one_buffer
from scalescope.worker.comm.pattern import sum_of


def prepare(shape: Shape) -> Operation:
    """One buffer, summed on rank 0; undefined on other ranks."""

    def run(buffer: Tensor) -> None:
        dist.reduce(buffer, dst=0)

    def expected() -> Tensor | None:
        if shape.rank:
            return None
        return sum_of(shape.ranks, 0, shape.count, shape.dtype, shape.device)

    return on_one_buffer(shape, run, expected)
