"""Ranks of a script: which share a batch, and how they wait for each other on a store of their own."""

import contextlib
import datetime
import hashlib
import inspect
import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalescope import clocks
from scalescope.worker.hooks.hook_guard import Hooks

# ---- Replicas: what a rank knows about who shares its batch


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


# ---- The ranks of a script: who this one is, and how they wait for each other without a collective


_PREFIX = "scalescope"
_LIMIT = datetime.timedelta(hours=1)  # the launcher's limits are shorter
_LEAVING_LIMIT = datetime.timedelta(seconds=5)
_AFTER_LAST_S = 0.1
_GAVE_UP = f"{_PREFIX}/gave-up"
_IMPATIENT_S = 30.0  # that a training which goes on may wait for its ranks
_LOOK_S = 0.002


@dataclass(frozen=True)
class ScriptRanks:
    """This rank among the others of the script, with the store of their process group."""

    rank: int
    world_size: int
    store: Any = None
    is_patient: bool = True  # otherwise no rank waits for another that has given up
    asked: Counter[str] = field(default_factory=Counter)  # how often each value was agreed on

    @classmethod
    def current(cls, *, is_patient: bool = True) -> "ScriptRanks":
        """The ranks of the process group; without one, those that the launcher's variables name."""
        if dist.is_available() and dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
            return cls(dist.get_rank(), dist.get_world_size(), store, is_patient)
        with contextlib.suppress(KeyError, ValueError):
            return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return cls(0, 1)

    @property
    def are_joined(self) -> bool:
        return self.world_size == 1 or self.store is not None

    def common(self, name: str, value: float) -> float:
        """The value of rank 0; a measurement that begins anew asks again, under another key."""
        self.asked[name] += 1
        return float(self.agree(f"{name}/{self.asked[name]}", repr(value)))

    def agree(self, name: str, text: str) -> str:
        """What rank 0 says; the others wait for it."""
        if self.world_size == 1:
            return text
        key = f"{_PREFIX}/{name}"
        if self.rank == 0:
            self.store.set(key, text)
            return text
        self._wait([key], _LIMIT)
        return str(self.store.get(key).decode())

    def meet(self, name: str, limit: datetime.timedelta = _LIMIT) -> None:
        """Wait until all ranks are here."""
        if self.world_size == 1:
            return
        self.store.set(f"{_PREFIX}/{name}/{self.rank}", "here")
        self._wait([f"{_PREFIX}/{name}/{rank}" for rank in range(self.world_size)], limit)

    def arrive(self, name: str) -> None:
        """Be at a meeting without waiting for others."""
        if self.world_size > 1:
            self.store.set(f"{_PREFIX}/{name}/{self.rank}", "here")

    def give_up(self) -> None:
        """Let no other rank wait for this one."""
        if self.world_size > 1 and not self.is_patient:
            self.store.set(_GAVE_UP, str(self.rank))

    def _wait(self, keys: list[str], limit: datetime.timedelta) -> None:
        if self.is_patient:
            self.store.wait(keys, limit)
            return
        deadline = clocks.monotonic() + _IMPATIENT_S
        while not self.store.check(keys):
            if self.store.check([_GAVE_UP]) or clocks.monotonic() > deadline:
                raise TimeoutError("another rank could not be measured")
            clocks.sleep(_LOOK_S)

    def leave(self, code: int) -> None:
        """End this process; the one that may host the store ends last."""
        with contextlib.suppress(Exception):  # a store whose host has gone
            if code == 0:
                self.meet("done", _LEAVING_LIMIT)
            if self.world_size > 1 and self.rank > 0:
                self.store.set(f"{_PREFIX}/left/{self.rank}", "gone")
            elif self.world_size > 1:
                others = [f"{_PREFIX}/left/{rank}" for rank in range(1, self.world_size)]
                self.store.wait(others, _LEAVING_LIMIT)
                clocks.sleep(_AFTER_LAST_S)
        for child in multiprocessing.active_children():
            child.terminate()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
