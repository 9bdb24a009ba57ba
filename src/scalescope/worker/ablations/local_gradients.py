"""DDP without its exchange: a hook that keeps local gradients, so that ranks diverge on purpose.

A rank without communication must do everything else that a normal rank does. With a hook installed, DDP no
longer divides gradients by the number of ranks (`Reducer::mark_variable_ready_dense`):

- A gradient that lives in its bucket is divided in place, which is a pass over memory of its own. With a hook
  nobody divides, so this one does, tensor by tensor as DDP.
- A gradient elsewhere is copied into the bucket and divided in the same pass. With a hook it is copied, in a
  pass of the same length: there is nothing to add.
"""

import time

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

_SETTLES_IN = 3  # iterations; DDP makes its buckets anew before the second, with a static graph the third


class LocalGradients:
    """The hook, and how long it takes per step."""

    def __init__(self, wrapped: DistributedDataParallel, device: torch.device, *, divides: bool) -> None:
        self._devices: list[int | str | torch.device] | None = [device] if device.type == "cuda" else None
        self._ranks = torch.distributed.get_world_size()
        self._divides = divides
        self._iterations = 0
        self._before_backward: dict[int, int] = {}  # address of each parameter's gradient
        self._in_place: dict[int, list[Tensor]] = {}  # by bucket: what DDP would divide in place
        self._hook_ns = self._division_ns = self._timed = 0
        # After forward: before it DDP may still move gradients into new buckets.
        self._looking = wrapped.register_forward_hook(lambda module, *_: self._look(module))
        wrapped.register_comm_hook(None, self._keep)

    def counters(self) -> dict[str, float | int | str | None]:
        """Mean times per step: the hook's own, which normal ranks do not spend, and the divisions."""
        if not self._timed:
            return {}
        return {
            "no_comm_hook_s_per_step": (self._hook_ns - self._division_ns) / self._timed / 1e9,
            "no_comm_division_s_per_step": self._division_ns / self._timed / 1e9,
        }

    def _look(self, module: nn.Module) -> None:
        """Note where gradients are before backward: those in their buckets are divided there."""
        self._before_backward = {
            id(parameter): parameter.grad.data_ptr()
            for parameter in module.parameters()
            if parameter.grad is not None
        }

    def _keep(self, state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        began = time.perf_counter_ns()
        if self._iterations < _SETTLES_IN:
            self._in_place[bucket.index()] = self._divided_in_place(bucket)
        divisions_began = time.perf_counter_ns()
        for gradient in self._in_place[bucket.index()]:
            gradient.div_(self._ranks)
        divisions_ended = time.perf_counter_ns()
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=self._devices)
        done.set_result(bucket.buffer())
        settled = self._iterations >= _SETTLES_IN
        if bucket.is_last():
            self._end_iteration()
        if settled:
            self._timed += bucket.is_last()
            self._division_ns += divisions_ended - divisions_began
            self._hook_ns += time.perf_counter_ns() - began
        return done

    def _divided_in_place(self, bucket: GradBucket) -> list[Tensor]:
        if not self._divides:
            return []
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return [view for owner, view in pairs if self._before_backward.get(id(owner)) == view.data_ptr()]

    def _end_iteration(self) -> None:
        self._iterations += 1
        if self._iterations == _SETTLES_IN:
            self._looking.remove()
            self._before_backward.clear()
