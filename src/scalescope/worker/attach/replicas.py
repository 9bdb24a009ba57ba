"""Replicas: what a rank knows about who shares its batch.

Only ranks that train on samples of their own add to the samples of a step. DDP and FSDP say over how many
ranks they average gradients. Without them a rank tells over how many ranks its parameters are cut, what its
model received, and whether it sends to single ranks, as stages of a pipeline do; from what all ranks tell
follows how many replicas there are, or that it cannot be known.
"""

import contextlib
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.worker.attach.hook_guard import Hooks

_MOST_VALUES = 1 << 16  # of an input that are compared
_SENDS = ("send", "recv", "recv_anysource")


class SendsToRanks(Hooks):
    """Counts what is sent to and received from single ranks, however the script calls for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def install(self) -> None:
        for name in _SENDS:
            if hasattr(dist, "ProcessGroup") and hasattr(dist.ProcessGroup, name):
                self._undo.append(self._counted(name))

    def _counted(self, name: str) -> Callable[[], None]:
        original = getattr(dist.ProcessGroup, name)

        is_compiled = torch.compiler.is_dynamo_compiling

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not is_compiled():
                self.count += 1
            return original(*args, **kwargs)

        stored = inspect.getattr_static(dist.ProcessGroup, name)  # a method written in C++ must stay one
        setattr(dist.ProcessGroup, name, counted)
        return lambda: setattr(dist.ProcessGroup, name, stored)


def averaging_ranks(modules: Iterable[nn.Module]) -> int | None:
    """Over how many ranks DDP or FSDP average gradients; None without them, or where they do not say."""
    sizes = [size for module in modules for part in module.modules() if (size := _averaging(part))]
    return max(sizes, default=None)


def cut_ranks(parameters: Iterable[Tensor]) -> int | None:
    """Over how many ranks parameters are cut; None where they are whole."""
    sizes = []
    for parameter in parameters:
        mesh = getattr(parameter, "device_mesh", None)
        placements = getattr(parameter, "placements", ())
        if mesh is not None and any(placement.is_shard() for placement in placements):
            cut = [mesh.size(n) for n, placement in enumerate(placements) if placement.is_shard()]
            sizes.append(math.prod(cut))
    return max(sizes, default=None)


def input_hash(tensor: Tensor | None) -> str | None:
    """Equal for ranks that received the same input; None without one."""
    if tensor is None:
        return None
    with torch.no_grad(), contextlib.suppress(RuntimeError, NotImplementedError):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        flat = local.detach().reshape(-1)
        few = flat[:: max(1, flat.numel() // _MOST_VALUES)].contiguous().cpu()
        content = bytes(few.view(torch.uint8).numpy())
        return hashlib.blake2b(content + repr(tuple(tensor.shape)).encode(), digest_size=8).hexdigest()
    return None


def _averaging(module: Any) -> int | None:
    """Of one module; versions of FSDP keep their meshes in different places."""
    if isinstance(module, DistributedDataParallel):
        return int(module.process_group.size())
    if type(module).__name__ == "DeepSpeedEngine":
        return getattr(module, "dp_world_size", None)
    if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
        between = getattr(module, "_inter_node_pg", None)
        size = int(module.process_group.size())
        return size if between is None else size * int(between.size())
    if hasattr(module, "unshard") and hasattr(module, "_get_fsdp_state"):
        with contextlib.suppress(AttributeError, TypeError):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            sizes = [_mesh_ranks(group.mesh_info) for group in groups if group is not None]
            return max(sizes, default=None)
    return None


def _mesh_ranks(info: Any) -> int:
    dimensions = (info.replicate_mesh_dim, info.shard_mesh_dim)
    return math.prod(info.mesh.size(dimension) for dimension in dimensions if dimension is not None)
