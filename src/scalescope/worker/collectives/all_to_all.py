"""`all_to_all`: torch has it out of place only."""

import torch
import torch.distributed as dist

from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.comm.pattern import count_wrong, values_of


def prepare(shape: Shape) -> Operation:
    """Part k of every rank's array to rank k."""
    size = shape.part * shape.ranks
    sent = torch.empty(size, dtype=shape.dtype, device=shape.device)
    received = torch.empty_like(sent)

    def reset() -> None:
        sent.copy_(values_of(shape.rank, shape.ranks, 0, size, shape.dtype, shape.device))
        received.zero_()

    def run() -> None:
        dist.all_to_all_single(received, sent)

    def part_from(rank: int) -> torch.Tensor:
        begin = shape.rank * shape.part
        return values_of(rank, shape.ranks, begin, shape.part, shape.dtype, shape.device)

    def wrong() -> int:
        return count_wrong(received, torch.cat([part_from(rank) for rank in range(shape.ranks)]))

    return Operation(reset=reset, run=run, wrong=wrong)
