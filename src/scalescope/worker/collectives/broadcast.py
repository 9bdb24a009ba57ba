"""`broadcast`: torch has it in place only."""

import torch.distributed as dist
from torch import Tensor

from scalescope.worker.comm.operation import Operation, Shape, on_one_buffer
from scalescope.worker.comm.pattern import values_of


def prepare(shape: Shape) -> Operation:
    """Rank 0's buffer to all."""

    def run(buffer: Tensor) -> None:
        dist.broadcast(buffer, src=0)

    def expected() -> Tensor | None:
        return values_of(0, shape.ranks, 0, shape.count, shape.dtype, shape.device)

    return on_one_buffer(shape, run, expected)
