"""DDP without its exchange: a hook that keeps local gradients, so that ranks diverge on purpose.

A rank without communication must do everything else that a normal rank does. With a hook installed, DDP no
longer divides gradients by the number of ranks (`Reducer::mark_variable_ready_dense`):

- A gradient that lives in its bucket is divided in place, which is a pass over memory of its own. With a hook
  nobody divides, so this one does, tensor by tensor as DDP.
- A gradient elsewhere is copied into the bucket and divided in the same pass. With a hook it is copied, in a
  pass of the same length: there is nothing to add.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalescope import clocks

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
