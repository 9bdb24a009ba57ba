"""The `scratch_ddp` strategy: data parallelism from scratch, written to be read.

Every rank holds the whole model and trains on its own samples. The replicas stay equal because they start
equal (a broadcast) and apply the same gradient in every step: the mean over all ranks. Four ideas make it
fast:

1. Buckets. A message has a fixed cost, so gradients travel in few large tensors, not in many small ones.
2. Reverse order. Backward computes the last layer's gradients first, so buckets are filled from the end of
   the model, and the first is full long before backward ends.
3. Overlap. A hook on every parameter runs when its gradient is ready; a full bucket is sent at once, and
   backward continues with earlier layers meanwhile.
4. Gradients live in the buckets, as views into the flat tensor that is sent: no copies in or out.

`benchmarks/scratch_ddp.py` compares it with `ddp` on two gloo ranks. On an idle machine (torch 2.11) a step
with 26 MiB of gradients took 1.005 times as long in one bucket [0.973, 1.038] and 1.006 in buckets of 4 MiB
[0.976, 1.036]: no difference that six launches can detect. Fixed costs show in a model 64 wide: 0.92 [0.91,
0.93]. The same 0.14 ms per step are saved without communication, so they are not messages but DDP's own work
around forward and backward. What that work provides is missing here: buffers kept equal in every step, uneven
inputs, communication hooks, buckets laid out in the order of use.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from scalescope.catalog.strategies.scratch_ddp import ScratchDdp
from scalescope.worker.training.step import OptimizerFactory, Step, Workload, plain_step

_MIB = 2**20
SPLITS_STEP = "requires gradients that are cleared in place"


def wrap(
    workload: Workload,
    options: ScratchDdp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step whose backward ends with the mean gradient of all ranks in every parameter."""
    cap_bytes = None if options.bucket_cap_mb is None else options.bucket_cap_mb * _MIB
    averager = Averager(workload.model, cap_bytes, sends=not without_communication)
    optimizer = make_optimizer(workload.model.parameters())
    # Gradients are cleared in place: set to None, they would come back as tensors outside the buckets.
    return plain_step(workload, workload.model, optimizer, no_sync=averager.no_sync, keep_gradients=True)


def bucket_layout(parameters: list[nn.Parameter], cap_bytes: float | None) -> list[list[nn.Parameter]]:
    """Which parameters share a bucket: from the last to the first, closed once the cap is reached."""
    layout: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        full = cap_bytes is not None and filled >= cap_bytes
        if not layout or full or layout[-1][0].dtype != parameter.dtype:  # a flat tensor has one type
            layout.append([])
            filled = 0
        layout[-1].append(parameter)
        filled += parameter.numel() * parameter.element_size()
    return layout


class Bucket:
    """Gradients that are sent together, one after the other in a flat tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes))
        self.missing = len(parameters)
        for parameter, piece in zip(parameters, self.flat.split(sizes), strict=True):
            # Autograd adds to a gradient that is there, so backward writes straight into the flat tensor.
            parameter.grad = piece.view_as(parameter)


class Averager:
    """Replaces the gradients of `model` by their mean over all ranks, while backward is still running."""

    def __init__(self, model: nn.Module, cap_bytes: float | None, *, sends: bool = True) -> None:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)  # replicas that start different stay different
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = [Bucket(parameters) for parameters in bucket_layout(trained, cap_bytes)]
        self._sends = sends
        self._synchronises = True
        self._in_backward = False
        self._launched = 0
        self._works: list[dist.Work] = []
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, of=bucket: self._on_gradient(of))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up locally; the first backward outside sends the sum."""
        self._synchronises = False
        try:
            yield
        finally:
            self._synchronises = True

    def _on_gradient(self, bucket: Bucket) -> None:
        """A gradient of this bucket is complete: send what has become full."""
        if not self._synchronises:
            return
        if not self._in_backward:
            self._in_backward = True
            # Autograd calls back when this backward is over, before `loss.backward()` returns.
            Variable._execution_engine.queue_callback(self._on_backward_end)
        bucket.missing -= 1
        # Collectives must run in the same order on all ranks, buckets fill in any order: each waits its turn.
        while self._launched < len(self.buckets) and self.buckets[self._launched].missing == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[self._launched]
        self._launched += 1
        bucket.flat.div_(dist.get_world_size())  # before the sum, which then cannot overflow
        if self._sends:
            work = dist.all_reduce(bucket.flat, async_op=True)
            assert work is not None  # None is for ranks outside the group
            self._works.append(work)

    def _on_backward_end(self) -> None:
        """Wait for the sums; the optimizer comes next."""
        while self._launched < len(self.buckets):  # its parameters were not all used in this pass
            self._launch_next()
        for work in self._works:
            work.wait()
        self._works.clear()
        self._launched = 0
        self._in_backward = False
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)
