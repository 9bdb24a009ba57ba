"""FSDP without its collectives: parameters from the local shard alone, gradients of the local samples alone.

FSDP2 lets both collectives be replaced. Copies into and out of the buffers, their allocation and the order
of streams stay FSDP's own. What replaces a collective writes as much local memory as a rank receives: memory
that nobody wrote could hold anything, and numbers that are not finite change how long kernels take.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalescope.errors import BadInput

_SETTERS = ("set_custom_all_gather", "set_custom_reduce_scatter")


def keep_shards_local(model: nn.Module) -> None:
    """Replace the collectives of all parts of a model inside FSDP; refuse where torch cannot do that."""
    parts: list[Any] = [module for module in model.modules() if hasattr(module, "unshard")]
    if not all(hasattr(part, setter) for part in parts for setter in _SETTERS):
        raise BadInput(
            f"FSDP of torch {torch.__version__} cannot train without communication: it lacks "
            f"{' and '.join(_SETTERS)}"
        )
    for part in parts:
        part.set_custom_all_gather(RepeatShard())
        part.set_custom_reduce_scatter(KeepChunk())


class _Allocated:
    """Buffers as FSDP allocates them."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class RepeatShard(_Allocated):
    """In place of an all-gather: this rank's shard stands for those of all ranks."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        rank = group.rank()
        shards = output_tensor.view(group.size(), -1)
        if shards[rank].data_ptr() != input_tensor.data_ptr():  # FSDP writes its shard straight there
            shards[rank].copy_(input_tensor.view(-1))
        shard = shards[rank]
        for others in (shards[:rank], shards[rank + 1 :]):
            if len(others):
                others.copy_(shard)


class KeepChunk(_Allocated):
    """In place of a reduce-scatter: this rank's chunk of its gradients, divided where the sum would be."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        chunk = input_tensor.view(group.size(), -1)[group.rank()].view_as(output_tensor)
        if op == dist.ReduceOp.AVG:  # the collective divides; otherwise FSDP itself does
            torch.div(chunk, group.size(), out=output_tensor)
        else:
            output_tensor.copy_(chunk)
