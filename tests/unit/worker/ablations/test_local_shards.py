"""What stands in place of FSDP's collectives, and the refusal where torch cannot replace them."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.ablations.local_shards import KeepChunk, RepeatShard, keep_shards_local


def _group(rank: int, ranks: int) -> dist.ProcessGroup:
    group = mock.Mock(spec=dist.ProcessGroup)
    group.rank.return_value, group.size.return_value = rank, ranks
    return group


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("inside", [True, False])
def test_all_shards_are_the_local_one_and_none_is_left_unwritten(rank: int, inside: bool) -> None:
    gathered = torch.full((6,), float("nan"))
    shard = gathered[2 * rank : 2 * rank + 2] if inside else torch.empty(2)
    shard.copy_(torch.tensor([1.0, 2.0]))
    RepeatShard()(gathered, shard, _group(rank, 3))
    assert gathered.tolist() == [1.0, 2.0] * 3


@pytest.mark.parametrize(("op", "chunk"), [(dist.ReduceOp.AVG, [1.0, 1.5]), (dist.ReduceOp.SUM, [2.0, 3.0])])
def test_the_chunk_is_divided_where_the_collective_would_divide(op: object, chunk: list[float]) -> None:
    kept = torch.full((2,), float("nan"))
    KeepChunk()(kept, torch.arange(4.0), _group(1, 2), op)
    assert kept.tolist() == chunk


def test_a_torch_that_cannot_replace_them_is_refused() -> None:
    class OldFsdp(nn.Linear):
        """Inside FSDP, but of an older torch."""

        def unshard(self) -> None: ...

    with pytest.raises(BadInput, match="cannot train without communication"):
        keep_shards_local(nn.Sequential(OldFsdp(2, 2)))
