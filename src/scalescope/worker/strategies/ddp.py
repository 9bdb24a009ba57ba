"""The `ddp` strategy: PyTorch's DistributedDataParallel with the settings of its card."""

import warnings
from typing import Any

import torch
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalescope.catalog.strategies.ddp import Ddp
from scalescope.worker.step import OptimizerFactory, Step, Workload, plain_step


def wrap(
    workload: Workload,
    options: Ddp,
    device: torch.device,
    ablation: str,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step whose backward averages gradients over the default process group."""
    with warnings.catch_warnings():
        # torch 2.13 renames broadcast_buffers; the new name is unknown to the older ones we support
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = DistributedDataParallel(
            workload.model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            broadcast_buffers=options.broadcast_buffers,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
        )
    if ablation == "noop_comm":
        wrapped.register_comm_hook(device, _send_nothing)
    return plain_step(workload, wrapped, make_optimizer, keep_gradients=options.gradient_as_bucket_view)


def _send_nothing(device: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that leaves the local gradients as they are: ranks diverge on purpose."""
    devices = [device] if device.type == "cuda" else None
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    done.set_result(bucket.buffer())
    return done
