"""`sendrecv`: every rank sends to the next and receives from the one before, at the same time."""

import torch
import torch.distributed as dist

from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.comm.pattern import count_wrong, values_of


def prepare(shape: Shape) -> Operation:
    """Two buffers; between two ranks both directions are busy at once."""
    array = (0, shape.count, shape.dtype, shape.device)
    sent = torch.empty(shape.count, dtype=shape.dtype, device=shape.device)
    received = torch.empty_like(sent)
    next_rank, previous = (shape.rank + 1) % shape.ranks, (shape.rank - 1) % shape.ranks

    def reset() -> None:
        sent.copy_(values_of(shape.rank, shape.ranks, *array))
        received.zero_()

    def run() -> None:
        # Receive first: gloo's message that a receiver is ready must not queue behind the data.
        transfers = [
            dist.P2POp(dist.irecv, received, previous),
            dist.P2POp(dist.isend, sent, next_rank),
        ]
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()

    return Operation(
        reset=reset, run=run, wrong=lambda: count_wrong(received, values_of(previous, shape.ranks, *array))
    )
