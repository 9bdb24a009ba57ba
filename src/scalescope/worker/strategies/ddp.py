"""The `ddp` strategy: PyTorch's DistributedDataParallel with the settings of its card."""

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalescope.catalog.strategies.ddp import Ddp
from scalescope.worker.ablations import LocalGradients
from scalescope.worker.machine.rates import DTYPES
from scalescope.worker.training.ddp_logging import DdpWatch, bucket_samples
from scalescope.worker.training.measurements import unused_parameters
from scalescope.worker.training.own_step import own_models, own_optimizers, whole_step
from scalescope.worker.training.step import Batch, OptimizerFactory, Step, Workload, plain_step

_NAMED = 3  # parameters without a gradient, in a message


def wrap(
    workload: Workload,
    options: Ddp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step whose backward averages gradients over the default process group."""
    if without_communication:  # buffers would still be broadcast, and ranks would wait for them
        options = dataclasses.replace(options, broadcast_buffers=False)
    wrapped = wrapped_in_ddp(workload.model, options, device)
    silent = add_comm_hook(wrapped, options, device, without_communication)
    optimizer = make_optimizer(workload.model.parameters())
    return step_of(workload, wrapped, optimizer, options, silent)


def step_of(
    workload: Workload,
    wrapped: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    options: Ddp,
    silent: LocalGradients | None,
) -> Step:
    """The training step around a model inside DDP; `silent` is the hook of ranks without communication."""
    step = plain_step(
        workload,
        wrapped,
        optimizer,
        no_sync=wrapped.no_sync,
        keep_gradients=options.gradient_as_bucket_view,
    )
    watch = DdpWatch(wrapped, has_hook=silent is not None or options.comm_hook != "none")
    step = dataclasses.replace(
        step,
        samples=lambda: bucket_samples(wrapped),
        counters=dict if silent is None else silent.counters,
        watch=watch,
        explain_failure=partial(_explain_failure, workload, options),
    )
    if silent is not None:
        step = _observed(step, silent)
    return synchronise_first_step(step) if options.static_graph else step


def wrap_own_step(
    workload: Workload,
    options: Ddp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """The user's own step with every model that is trained inside a DDP of its own."""
    wrapped, silent = wrapped_models(workload, options, device, without_communication)
    return own_step_of_models(workload, wrapped, own_optimizers(workload, make_optimizer), options, silent)


def wrapped_models(
    workload: Workload, options: Ddp, device: torch.device, without_communication: bool
) -> tuple[list[nn.Module], list[LocalGradients]]:
    """The models of a user's own step, and the hooks of ranks without communication."""
    if without_communication:  # as in `wrap`
        options = dataclasses.replace(options, broadcast_buffers=False)
    wrapped: list[nn.Module] = []
    silent = []
    for model in own_models(workload):
        if not any(parameter.requires_grad for parameter in model.parameters()):
            wrapped.append(model)  # DDP refuses a model without gradients, such as a moving average
            continue
        inside = wrapped_in_ddp(model, options, device)
        hook = add_comm_hook(inside, options, device, without_communication)
        if hook is not None:
            hook.watch_backward()
            silent.append(hook)
        wrapped.append(inside)
    return wrapped, silent


def own_step_of_models(
    workload: Workload,
    wrapped: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    options: Ddp,
    silent: Sequence[LocalGradients],
) -> Step:
    """The user's own step around models inside DDP."""
    inside = [model for model in wrapped if isinstance(model, DistributedDataParallel)]

    def samples() -> dict[str, list[float]]:
        sizes = [bucket_samples(model).get("bucket_bytes", []) for model in inside]
        return {"bucket_bytes": list(itertools.chain.from_iterable(sizes))} if all(sizes) else {}

    def counters() -> dict[str, float | int | str | None]:
        times_s: Counter[str] = Counter()
        for hook in silent:
            times_s.update(hook.times_s())
        return dict(times_s)

    def clear() -> None:
        for hook in silent:
            hook.after_step()

    return dataclasses.replace(
        whole_step(workload, wrapped, optimizers),
        clear=clear,
        samples=samples,
        counters=counters,
        watch=DdpWatch(*inside, has_hook=bool(silent) or options.comm_hook != "none"),
        explain_failure=partial(_explain_own_failure, options),
    )


def _explain_own_failure(options: Ddp, error: RuntimeError, batch: Batch) -> str | None:
    """The same without the parameters' names: only the user's step knows how to compute a loss."""
    if options.find_unused_parameters or "find_unused_parameters" not in str(error):
        return None
    return (
        "some parameters of a model get no gradient in a step; DDP requires --find-unused-parameters for "
        "such a model"
    )


def _observed(step: Step, silent: LocalGradients) -> Step:
    def backward(loss: torch.Tensor) -> None:
        silent.before_backward()
        step.backward(loss)

    def clear() -> None:
        step.clear()
        silent.after_step()

    return dataclasses.replace(step, backward=backward, clear=clear)


def _explain_failure(workload: Workload, options: Ddp, error: RuntimeError, batch: Batch) -> str | None:
    """DDP fails in the second step where parameters get no gradient; its message names none of our flags."""
    if options.static_graph or options.find_unused_parameters:
        return None
    model = workload.model
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return None  # it would wait for ranks that may have ended
    unused = unused_parameters(model, workload.loss_of(model, batch))
    if unused:
        more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        what = f"{len(unused)} of the model's parameters get no gradient ({', '.join(unused[:_NAMED])}{more})"
    elif "find_unused_parameters" in str(error):  # the name of DDP's argument, which was not enough here
        what = "some batches do not use all parameters of the model"
    else:
        return None
    return f"{what}; DDP requires --find-unused-parameters for such a model"


def wrapped_in_ddp(model: nn.Module, options: Any, device: torch.device) -> DistributedDataParallel:
    """The model inside PyTorch's DDP."""
    with warnings.catch_warnings():
        # torch 2.13 renames broadcast_buffers; older supported versions do not know the new name
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            broadcast_buffers=options.broadcast_buffers,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            find_unused_parameters=options.find_unused_parameters,
        )


def add_comm_hook(
    wrapped: DistributedDataParallel, options: Ddp, device: torch.device, without_communication: bool
) -> LocalGradients | None:
    """Send gradients in 16 bits, or not at all; without a hook DDP sends them as they are.

    Converting to 16 bits and back is part of the exchange, so ranks without communication do not do it; nor
    does DDP divide beside a hook.
    """
    if without_communication:
        return LocalGradients(wrapped, device, divides=options.comm_hook == "none")
    if options.comm_hook != "none":
        wrapped.register_comm_hook(DTYPES[options.comm_hook], _send_half)
    return None


def synchronise_first_step(step: Step) -> Step:
    """With a static graph, `no_sync` fails in the first iteration: synchronise every batch of that step.

    The result stays exact: averaging an average again does not change it.
    """
    ended = [0]

    def clear() -> None:  # the only part that no lever replaces
        step.clear()
        ended[0] += 1

    def no_sync() -> AbstractContextManager[None]:
        return step.no_sync() if ended[0] else nullcontext()

    return dataclasses.replace(step, clear=clear, no_sync=no_sync)


def _send_half(dtype: torch.dtype, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that sends 16 bits per element; PyTorch's own hook for bf16 does not support gloo.

    A hook replaces DDP's division by the number of ranks, so this one divides, before the sum can overflow.
    """
    full = bucket.buffer()
    half = full.to(dtype).div_(dist.get_world_size())
    work = dist.all_reduce(half, async_op=True)
    assert work is not None  # None is for ranks outside the group

    def restore(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        full.copy_(done.value()[0])
        return full

    restored: torch.futures.Future[torch.Tensor] = work.get_future().then(restore)
    return restored
