"""`all_gather`: in place, a rank's input is part of its output buffer."""

import torch
import torch.distributed as dist

from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.comm.pattern import count_wrong, values_of


def prepare(shape: Shape) -> Operation:
    """Every rank's part into one array on every rank."""
    whole = torch.empty(shape.part * shape.ranks, dtype=shape.dtype, device=shape.device)
    begin = shape.rank * shape.part
    local = whole[begin : begin + shape.part] if shape.in_place else torch.empty_like(whole[: shape.part])

    def part_of(rank: int) -> torch.Tensor:
        return values_of(rank, shape.ranks, rank * shape.part, shape.part, shape.dtype, shape.device)

    def reset() -> None:
        whole.zero_()
        local.copy_(part_of(shape.rank))

    def run() -> None:
        dist.all_gather_into_tensor(whole, local)

    def wrong() -> int:
        return count_wrong(whole, torch.cat([part_of(rank) for rank in range(shape.ranks)]))

    return Operation(reset=reset, run=run, wrong=wrong)
