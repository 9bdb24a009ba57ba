"""What stands in place of communication: the same work with nothing sent."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalescope import clocks
from scalescope.errors import BadInput

if TYPE_CHECKING:  # it loads parts of torch that are slow to load
    from torch.distributed.optim import ZeroRedundancyOptimizer

# ---- DDP without its exchange: a hook that keeps local gradients; ranks diverge on purpose


_SETTLES_IN = 3  # steps; DDP makes its buckets anew before the second, with a static graph the third


class LocalGradients:
    """The hook, and how long it takes per step."""

    def __init__(self, wrapped: DistributedDataParallel, device: torch.device, *, divides: bool) -> None:
        self._devices: list[int | str | torch.device] | None = [device] if device.type == "cuda" else None
        self._ranks = torch.distributed.get_world_size()
        self._divides = divides
        self._steps = 0
        self._before_backward: dict[int, int] = {}  # address of each parameter's gradient
        self._in_place: dict[int, list[Tensor]] = {}  # by bucket: what DDP would divide in place
        self._handles: list[Any] = []
        self._hook_ns = self._division_ns = 0
        self._parameters = list(wrapped.parameters())
        wrapped.register_comm_hook(None, self._keep)

    def counters(self) -> dict[str, float | int | str | None]:
        """The same to be stored."""
        return dict(self.times_s())

    def times_s(self) -> dict[str, float]:
        """Mean times per step: the hook's own, which normal ranks do not spend, and the divisions."""
        timed = self._steps - _SETTLES_IN
        if timed <= 0:
            return {}
        return {
            "no_comm_hook_s_per_step": (self._hook_ns - self._division_ns) / timed / 1e9,
            "no_comm_division_s_per_step": self._division_ns / timed / 1e9,
        }

    def before_backward(self) -> None:
        """Note where gradients are: those in their buckets are divided there.

        Not before forward, in which DDP may still move them into new buckets.
        """
        if self._steps >= _SETTLES_IN:
            return
        self._before_backward = {
            id(parameter): parameter.grad.data_ptr()
            for parameter in self._parameters
            if parameter.grad is not None
        }

    def watch_backward(self) -> None:
        """Note the same without `before_backward`, for a step whose backward is called by its user."""
        self._handles = [
            parameter.register_hook(partial(self._note, parameter))
            for parameter in self._parameters
            if parameter.requires_grad
        ]

    def _note(self, parameter: Tensor, gradient: Tensor) -> None:
        """Where the gradient is before autograd adds to it."""
        before = parameter.grad
        self._before_backward[id(parameter)] = 0 if before is None else before.data_ptr()

    def after_step(self) -> None:
        """Count steps; one has several backwards where gradients accumulate."""
        self._steps += 1
        if self._steps == _SETTLES_IN:
            for handle in self._handles:
                handle.remove()

    def _keep(self, state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        began = clocks.perf_counter_ns()
        if self._steps < _SETTLES_IN:
            self._in_place[bucket.index()] = self._divided_in_place(bucket)
        divisions_began = clocks.perf_counter_ns()
        for gradient in self._in_place[bucket.index()]:
            gradient.div_(self._ranks)
        divisions_ended = clocks.perf_counter_ns()
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=self._devices)
        done.set_result(bucket.buffer())
        if self._steps >= _SETTLES_IN:
            self._division_ns += divisions_ended - divisions_began
            self._hook_ns += clocks.perf_counter_ns() - began
        return done

    def _divided_in_place(self, bucket: GradBucket) -> list[Tensor]:
        if not self._divides:
            return []
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return [view for owner, view in pairs if self._before_backward.get(id(owner)) == view.data_ptr()]


# ---- FSDP without its collectives: parameters from the local shard alone, gradients of the local samples
# alone


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


# ---- ZeroRedundancyOptimizer without its broadcasts: ranks update their part and keep the rest as it was


_BROADCAST = "_sync_params"  # private, and the last part of `step`


def keep_update_local(optimizer: "ZeroRedundancyOptimizer") -> None:
    """Let the optimizer send no parameters; refuse where torch does that in another way."""
    if not hasattr(optimizer, _BROADCAST):
        raise BadInput(
            f"ZeroRedundancyOptimizer of torch {torch.__version__} cannot update without communication: "
            f"it has no {_BROADCAST}"
        )
    setattr(optimizer, _BROADCAST, lambda: None)


# ---- Collectives of the model itself, which no strategy can leave out


def count_model_collectives(model: nn.Module) -> int:
    """Layers that exchange something themselves in every forward and backward."""
    return sum(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())


def refuse_model_collectives(model: nn.Module) -> None:
    """Ranks whose model communicates wait for each other, whatever the strategy sends."""
    count = count_model_collectives(model)
    if count:
        layers = "a SyncBatchNorm layer" if count == 1 else f"{count} SyncBatchNorm layers"
        raise BadInput(f"a model with {layers} cannot be trained without communication")
