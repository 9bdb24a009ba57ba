"""Buckets of the data parallelism from scratch: what shares one, and when it leaves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalescope.worker.strategies import scratch_ddp
from scalescope.worker.strategies.scratch_ddp import Averager, Bucket, bucket_layout


def _parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size, dtype=dtype)) for size in sizes]


def _sizes(layout: list[list[nn.Parameter]]) -> list[list[int]]:
    return [[parameter.numel() for parameter in bucket] for bucket in layout]


@pytest.mark.parametrize(
    ("cap_bytes", "sizes"),
    [
        (None, [[5, 4, 3, 2, 1]]),
        (1000, [[5, 4, 3, 2, 1]]),
        (20, [[5], [4, 3], [2, 1]]),  # five fp32 numbers; a bucket closes once it has reached the cap
        (21, [[5, 4], [3, 2, 1]]),
        (1, [[5], [4], [3], [2], [1]]),
    ],
)
def test_buckets_are_filled_from_the_end_until_they_reach_the_cap(
    cap_bytes: float | None, sizes: list[list[int]]
) -> None:
    assert _sizes(bucket_layout(_parameters(1, 2, 3, 4, 5), cap_bytes)) == sizes


def test_a_bucket_holds_one_type() -> None:
    mixed = [*_parameters(1, 2), *_parameters(3, dtype=torch.float64), *_parameters(4)]
    assert _sizes(bucket_layout(mixed, None)) == [[4], [3], [2, 1]]
    assert bucket_layout([], 1.0) == []


def test_gradients_are_written_into_the_bucket() -> None:
    first, second = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3))
    bucket = Bucket([first, second])
    (2 * first.sum() + 3 * second.sum()).backward()
    assert bucket.flat.tolist() == [2.0] * 4 + [3.0] * 3


class _TwoBranches(nn.Module):
    """Uses its parameters in any order, or only some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(_parameters(1, 2, 3))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, order: list[int]) -> torch.Tensor:
        total = torch.zeros(())
        for number in order:
            total = (total + self.weights[number].sum()) * 2
        return total


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the messages, in the order in which they leave."""
    sizes: list[int] = []
    all_reduce: Callable[..., Any] = dist.all_reduce

    def watched(tensor: torch.Tensor, **options: Any) -> Any:
        sizes.append(tensor.numel())
        return all_reduce(tensor, **options)

    monkeypatch.setattr(scratch_ddp.dist, "all_reduce", watched)
    return sizes


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1], [0, 2]])
def test_buckets_leave_in_one_order_whichever_fills_first_or_never(
    alone: None, sent: list[int], order: list[int]
) -> None:
    model = _TwoBranches()
    Averager(model, cap_bytes=1)
    for _ in range(2):
        model(order).backward()
    assert sent == [3, 2, 1] * 2


def test_nothing_leaves_inside_no_sync_and_the_sum_does_after_it(alone: None, sent: list[int]) -> None:
    model = _TwoBranches()
    averager = Averager(model, cap_bytes=None)
    with averager.no_sync():
        model([2]).backward()
    assert sent == []
    model([2]).backward()
    assert sent == [6]
    assert averager.buckets[0].flat.tolist() == [4.0] * 3 + [0.0] * 3


def test_without_sending_gradients_are_divided_all_the_same(
    alone: None, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_ddp.dist, "get_world_size", lambda: 2)
    model = _TwoBranches()
    averager = Averager(model, cap_bytes=None, sends=False)
    model([2]).backward()
    assert sent == []
    assert averager.buckets[0].flat.tolist() == [1.0] * 3 + [0.0] * 3


def test_the_sum_is_divided_by_the_number_of_ranks(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _TwoBranches()
    averager = Averager(model, cap_bytes=None)
    monkeypatch.setattr(scratch_ddp.dist, "get_world_size", lambda: 4)
    model([2]).backward()
    assert averager.buckets[0].flat.tolist() == [0.5] * 3 + [0.0] * 3
