"""The `fsdp` strategy: PyTorch's FSDP2, block by block."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.worker.ablations import keep_shards_local
from scalescope.worker.machine.rates import expect_emulation
from scalescope.worker.rank_profile import units_of
from scalescope.worker.training.own_step import own_models, own_optimizers, whole_step
from scalescope.worker.training.step import OptimizerFactory, Step, Workload, plain_step

# Everything in fp32; or bf16 for everything except the sum of gradients and the outputs, which the loss uses.
_INNER = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
_OUTER = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": dataclasses.replace(_INNER["bf16"], output_dtype=torch.float32),
}


def wrap(
    workload: Workload,
    options: Fsdp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """A training step that gathers the parameters of a block only while the block computes."""
    model = _sharded(workload.model, options, device)
    if without_communication:
        keep_shards_local(workload.model)

    @contextmanager
    def no_sync() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    # The optimizer is created last: sharding replaces the parameters.
    optimizer = make_optimizer(workload.model.parameters())
    return plain_step(workload, workload.model, optimizer, no_sync=no_sync)


def wrap_own_step(
    workload: Workload,
    options: Fsdp,
    device: torch.device,
    without_communication: bool,
    make_optimizer: OptimizerFactory,
) -> Step:
    """The user's own step with each model sharded separately."""
    models = own_models(workload)
    for model in models:
        if next(model.parameters(), None) is not None:
            _sharded(model, options, device)
    if without_communication:
        keep_shards_local(workload.model)
    return whole_step(workload, models, own_optimizers(workload, make_optimizer))


def _sharded(model: nn.Module, options: Fsdp, device: torch.device) -> FSDPModule:
    """The model itself, its blocks and what is left of it sharded over all ranks."""
    if options.fsdp_param_dtype != "fp32":
        expect_emulation()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    inner, outer = _INNER[options.fsdp_param_dtype], _OUTER[options.fsdp_param_dtype]
    reshard = options.reshard_after_forward  # None: torch decides, differently for the root
    for unit in units_of(model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=inner)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=outer)
