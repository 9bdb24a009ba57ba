"""Every collective's own check: the right result passes, a wrong element in any type is counted."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalescope.catalog.benchmarks.comm import DTYPE_BYTES
from scalescope.catalog.collectives import COLLECTIVES, collective_named
from scalescope.worker.collectives import Operation, Shape, prepare, sum_of, values_of

_RANKS = 3
_COUNT = 12
_CASES = [
    (name, in_place)
    for name in tuple(COLLECTIVES)
    for in_place in collective_named(name).in_place
    if collective_named(name).has_data
]
_RECEIVERS = {"broadcast": 1, "reduce": 0}  # the rank whose result is defined; any rank for the others


def _value(rank: int, index: int) -> int:
    """What a rank contributes to a place, worked out by hand."""
    return (index * (rank + 1) + index // (rank + 2) + rank) % 4


def _sums() -> list[int]:
    return [sum(_value(rank, index) for rank in range(_RANKS)) for index in range(_COUNT)]


def _expected(name: str, rank: int) -> list[int]:
    part = range(rank * _COUNT // _RANKS, (rank + 1) * _COUNT // _RANKS)
    whole = range(_COUNT)
    results: dict[str, Callable[[], list[int]]] = {
        "all_reduce": _sums,
        "reduce": _sums,
        "reduce_scatter": lambda: [_sums()[index] for index in part],
        "broadcast": lambda: [_value(0, index) for index in whole],
        "all_gather": lambda: [_value(index * _RANKS // _COUNT, index) for index in whole],
        "all_to_all": lambda: [_value(other, index) for other in range(_RANKS) for index in part],
        "sendrecv": lambda: [_value((rank - 1) % _RANKS, index) for index in whole],
    }
    return results[name]()


class _Network:
    """Stands for torch.distributed: keeps the tensor that a collective would have filled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.result = torch.empty(0)
        into_first = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
        for name in (*into_first, "broadcast", "reduce"):
            monkeypatch.setattr(dist, name, self._keep)
        monkeypatch.setattr(dist, "P2POp", lambda what, tensor, peer: SimpleNamespace(op=what, tensor=tensor))
        monkeypatch.setattr(dist, "batch_isend_irecv", self._keep_received)

    def _keep(self, result: torch.Tensor, *_: Any, **__: Any) -> None:
        self.result = result

    def _keep_received(self, transfers: list[Any]) -> list[Any]:
        (self.result,) = (transfer.tensor for transfer in transfers if transfer.op is dist.irecv)
        return []


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> _Network:
    return _Network(monkeypatch)


def _operation(name: str, in_place: bool, dtype: str) -> tuple[Operation, int]:
    rank = _RECEIVERS.get(name, 2)
    shape = Shape(
        rank=rank,
        ranks=_RANKS,
        count=_COUNT,
        dtype=getattr(torch, dtype),
        device=torch.device("cpu"),
        in_place=in_place,
    )
    operation: Operation = prepare(name, shape)
    operation.reset()
    operation.run()
    return operation, rank


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize(("name", "in_place"), _CASES)
def test_a_wrong_element_is_counted(network: _Network, name: str, in_place: bool, dtype: str) -> None:
    operation, rank = _operation(name, in_place, dtype)
    assert operation.wrong() > 0  # nothing was carried yet
    network.result.copy_(torch.tensor(_expected(name, rank)))
    assert operation.wrong() == 0
    network.result[1] += 1
    assert operation.wrong() == 1
    network.result[-1] += 1
    assert operation.wrong() == 2
    if network.result.is_floating_point():
        network.result[0] = math.nan
        assert operation.wrong() == 3


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_sums_of_many_ranks_stay_exact(dtype: str) -> None:
    """Adding in the type itself, in any order, gives the predicted sum."""
    array = (0, 64, getattr(torch, dtype), torch.device("cpu"))
    for ranks in (2, 42, 43, 85, 86, 127, 200):
        values = [values_of(rank, ranks, *array) for rank in range(ranks)]
        forth, back = torch.zeros(64, dtype=array[2]), torch.zeros(64, dtype=array[2])
        for mine, other in zip(values, reversed(values), strict=True):
            forth += mine
            back += other
        predicted = sum_of(ranks, *array)
        assert torch.equal(forth, predicted)
        assert torch.equal(back, predicted)
        assert int(predicted.sum()) > 0
