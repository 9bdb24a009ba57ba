"""Collectives with their buffers, ready to run many times, and inputs with known results."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

# ---- Inputs with an exactly known result in every element type, for any order of summation

# The largest integer up to which all integers are exact.
_EXACT = {torch.bfloat16: 256, torch.float16: 2048, torch.int8: 127, torch.uint8: 255}


def values_of(
    rank: int, ranks: int, begin: int, count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """What `rank` contributes to elements begin … begin + count of the whole array."""
    positions = torch.arange(begin, begin + count, device=device)
    if 3 * ranks <= _EXACT.get(dtype, 1 << 24):
        # Integers that repeat neither over positions nor over ranks, to detect data at a wrong position.
        return ((positions * (rank + 1) + positions // (rank + 2) + rank) % 4).to(dtype)
    return ((positions + rank) % ranks == 0).to(dtype)  # with this many ranks, only ones and zeros stay exact


def sum_of(ranks: int, begin: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The exact sum of all ranks' contributions."""
    total = torch.zeros(count, dtype=torch.int64, device=device)
    for rank in range(ranks):
        total += values_of(rank, ranks, begin, count, dtype, device).to(torch.int64)
    return total.to(dtype)


def count_wrong(actual: Tensor, expected: Tensor) -> int:
    """How many elements differ; NaN differs from everything."""
    return int((actual != expected).sum().item())


# ---- An operation


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


# ---- Collectives: torch has all_reduce, broadcast and reduce in place only


def _all_gather(shape: Shape) -> Operation:
    """Every rank's part into one array on every rank."""
    whole = torch.empty(shape.part * shape.ranks, dtype=shape.dtype, device=shape.device)
    begin = shape.rank * shape.part
    local = whole[begin : begin + shape.part] if shape.in_place else torch.empty_like(whole[: shape.part])

    def part_of(rank: int) -> Tensor:
        return values_of(rank, shape.ranks, rank * shape.part, shape.part, shape.dtype, shape.device)

    def reset() -> None:
        whole.zero_()
        local.copy_(part_of(shape.rank))

    def run() -> None:
        dist.all_gather_into_tensor(whole, local)

    def wrong() -> int:
        return count_wrong(whole, torch.cat([part_of(rank) for rank in range(shape.ranks)]))

    return Operation(reset=reset, run=run, wrong=wrong)


def _all_reduce(shape: Shape) -> Operation:
    """One buffer, summed over all ranks."""

    def run(buffer: Tensor) -> None:
        dist.all_reduce(buffer)

    def expected() -> Tensor | None:
        return sum_of(shape.ranks, 0, shape.count, shape.dtype, shape.device)

    return on_one_buffer(shape, run, expected)


def _all_to_all(shape: Shape) -> Operation:
    """Part k of every rank's array to rank k."""
    size = shape.part * shape.ranks
    sent = torch.empty(size, dtype=shape.dtype, device=shape.device)
    received = torch.empty_like(sent)

    def reset() -> None:
        sent.copy_(values_of(shape.rank, shape.ranks, 0, size, shape.dtype, shape.device))
        received.zero_()

    def run() -> None:
        dist.all_to_all_single(received, sent)

    def part_from(rank: int) -> Tensor:
        begin = shape.rank * shape.part
        return values_of(rank, shape.ranks, begin, shape.part, shape.dtype, shape.device)

    def wrong() -> int:
        return count_wrong(received, torch.cat([part_from(rank) for rank in range(shape.ranks)]))

    return Operation(reset=reset, run=run, wrong=wrong)


def _barrier(shape: Shape) -> Operation:
    """All ranks wait for each other."""

    def run() -> None:
        dist.barrier()

    return Operation(reset=lambda: None, run=run, wrong=lambda: 0)


def _broadcast(shape: Shape) -> Operation:
    """Rank 0's buffer to all."""

    def run(buffer: Tensor) -> None:
        dist.broadcast(buffer, src=0)

    def expected() -> Tensor | None:
        return values_of(0, shape.ranks, 0, shape.count, shape.dtype, shape.device)

    return on_one_buffer(shape, run, expected)


def _reduce(shape: Shape) -> Operation:
    """One buffer, summed on rank 0; undefined on other ranks."""

    def run(buffer: Tensor) -> None:
        dist.reduce(buffer, dst=0)

    def expected() -> Tensor | None:
        if shape.rank:
            return None
        return sum_of(shape.ranks, 0, shape.count, shape.dtype, shape.device)

    return on_one_buffer(shape, run, expected)


def _reduce_scatter(shape: Shape) -> Operation:
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


def _sendrecv(shape: Shape) -> Operation:
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


_PREPARE: dict[str, Callable[[Shape], Operation]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "sendrecv": _sendrecv,
}


def prepare(collective: str, shape: Shape) -> Operation:
    """A collective of the catalog with its buffers."""
    return _PREPARE[collective](shape)
