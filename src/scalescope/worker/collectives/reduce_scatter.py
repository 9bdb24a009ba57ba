"""`reduce_scatter`: in place, a rank's output is part of its input buffer."""

import torch
import torch.distributed as dist

from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.comm.pattern import count_wrong, sum_of, values_of


def prepare(shape: Shape) -> Operation:
    """Every rank gets its part of the sum of all arrays."""
    size = shape.part * shape.ranks
    whole = torch.empty(size, dtype=shape.dtype, device=shape.device)
    begin = shape.rank * shape.part
    kept = whole[begin : begin + shape.part] if shape.in_place else torch.empty_like(whole[: shape.part])

    def reset() -> None:
        kept.zero_()
        whole.copy_(values_of(shape.rank, shape.ranks, 0, size, shape.dtype, shape.device))

    def run() -> None:
        dist.reduce_scatter_tensor(kept, whole)

    def wrong() -> int:
        return count_wrong(kept, sum_of(shape.ranks, begin, shape.part, shape.dtype, shape.device))

    return Operation(reset=reset, run=run, wrong=wrong)
