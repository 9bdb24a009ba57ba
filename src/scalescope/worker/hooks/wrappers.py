"""The script's DDP and FSDP: which there is, other arguments for DDP, and ranks that send nothing."""

import importlib
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.errors import BadInput
from scalescope.worker.ablations import LocalGradients, keep_shards_local
from scalescope.worker.hooks.hook_guard import HookGuard, Hooks
from scalescope.worker.machine.rates import DTYPES

DDP_ARGUMENTS = ("bucket_cap_mb", "broadcast_buffers", "static_graph", "gradient_as_bucket_view")
_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "all_gather_object",
    "broadcast_object_list",
)
_FUNCTIONAL = (  # what tensor parallelism calls
    "all_reduce",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "broadcast",
    "permute_tensor",
)


class Wrappers(Hooks):
    """Observes and changes what spreads the script's model over ranks."""

    def __init__(self, settings: Mapping[str, Any], guard: HookGuard, *, silent: bool) -> None:
        super().__init__()
        self._guard = guard
        self._arguments = {name: settings[name] for name in DDP_ARGUMENTS if settings.get(name) is not None}
        self._comm_hook = str(settings.get("comm_hook") or "none")
        self._silent = silent
        if silent:  # ranks would wait for each other's buffers
            self._arguments["broadcast_buffers"] = False
        self._hooks: list[LocalGradients] = []
        self.has_hooks = False  # asked for in every step
        self._calls: Counter[str] = Counter()
        self._left_out: list[str] = []
        self.replicas: list[DistributedDataParallel] = []
        self.kept_hooks = 0  # hooks of the script that ours replaces
        self.changed = 0

    def install(self) -> None:
        original = DistributedDataParallel.__init__
        wrappers = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            given = wrappers._changed(original, (self, *args), kwargs)
            with warnings.catch_warnings():
                # torch 2.13 renames broadcast_buffers; older supported versions do not know the new name
                if wrappers._arguments:
                    warnings.simplefilter("ignore", FutureWarning)
                original(*given.args, **given.kwargs)
            with wrappers._guard:
                wrappers._wrapped(self)

        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(DistributedDataParallel, "__init__", original))
        if self._silent:
            self._count_calls()

    def _count_calls(self) -> None:
        self._undo += [self._counted(dist, name) for name in _COLLECTIVES if hasattr(dist, name)]
        self._undo += [self._counted(dist.ProcessGroup, name) for name in ("send", "recv")]
        functional = importlib.import_module("torch.distributed._functional_collectives")
        names = [name for name in _FUNCTIONAL if hasattr(functional, name)]
        self._undo += [self._counted(functional, name) for name in names]

    def check(self) -> None:
        """Refuse arguments that no DDP took."""
        asked = [*self._arguments, *(() if self._comm_hook == "none" else ("comm_hook",))]
        if asked and not self._silent and not self.changed:
            raise BadInput(f"{', '.join(asked)}: the script uses no DistributedDataParallel")

    def before_backward(self) -> None:
        for hook in self._hooks:
            hook.before_backward()

    def after_step(self) -> None:
        for hook in self._hooks:
            hook.after_step()

    def silence_shards(self, modules: Iterable[nn.Module]) -> None:
        """Take the collectives out of FSDP2; DDP is silent from the start."""
        if self._silent:
            for module in modules:
                if kind_of((module,)) == "fsdp2":
                    keep_shards_local(module)

    def why_not_silenced(self) -> str | None:
        """Why communication cannot be removed from ranks that train already; None where it can."""
        if any(getattr(replica, "_comm_hooks", None) for replica in self.replicas) or self.kept_hooks:
            return "the script registers its own communication hook"
        if any(replica.find_unused_parameters for replica in self.replicas):
            return "DDP looks for unused parameters, which is communication too"
        return None

    def silence(self, modules: Iterable[nn.Module]) -> None:
        """Let ranks that train already send nothing from now on; a hook cannot be taken back."""
        self._silent = True
        for replica in self.replicas:
            for name in ("broadcast_buffers", "forward_sync_buffers"):
                if hasattr(replica, name):
                    setattr(replica, name, False)
            self._keep_gradients(replica)
        self.silence_shards(modules)
        self._count_calls()

    def reset(self) -> None:
        self._calls.clear()

    def counters(self) -> dict[str, float | int | str | None]:
        counters: dict[str, float | int | str | None] = {}
        for hook in self._hooks:
            counters |= hook.counters()
        return counters

    def remaining(self, steps: int) -> list[dict[str, float | int | str | None]]:
        """What ranks without communication still exchange."""
        rows = list(dict.fromkeys(self._left_out))
        for replica in self.replicas:
            if any(isinstance(module, nn.SyncBatchNorm) for module in replica.module.modules()):
                rows.append("SyncBatchNorm exchanges statistics")
        rows += [
            f"the script calls {name} {count / steps:.3g} times per step"
            for name, count in self._calls.items()
        ]
        return [{"what": what} for what in rows]

    def _changed(
        self, original: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> inspect.BoundArguments:
        """The script's arguments of DDP with those that the trial changes."""
        given = inspect.signature(original).bind_partial(*args, **kwargs)
        given.arguments.update(self._arguments)
        if "broadcast_buffers" in self._arguments and "forward_sync_buffers" in given.arguments:
            given.arguments["forward_sync_buffers"] = given.arguments.pop("broadcast_buffers")
        if self._silent and given.arguments.get("find_unused_parameters"):
            # DDP would exchange which parameters were used in every step; of a static graph it knows.
            given.arguments["static_graph"] = True
            self._left_out.append("removing communication also removes the search for unused parameters")
        return given

    def _wrapped(self, replica: DistributedDataParallel) -> None:
        self.replicas.append(replica)
        self.changed += 1
        if self._silent:
            self._keep_gradients(replica)
        elif self._comm_hook != "none":
            from scalescope.worker.strategies.ddp import _send_half

            replica.register_comm_hook(DTYPES[self._comm_hook], _send_half)
        else:
            return

        def absorb(*args: Any, **kwargs: Any) -> None:
            self.kept_hooks += 1

        replica.register_comm_hook = absorb  # type: ignore[method-assign]
        replica._register_builtin_comm_hook = absorb  # type: ignore[method-assign]

    def _keep_gradients(self, replica: DistributedDataParallel) -> None:
        device = next(replica.parameters()).device
        self._hooks.append(LocalGradients(replica, device, divides=True))
        self.has_hooks = True

    def _counted(self, owner: Any, name: str) -> Callable[[], None]:
        original = getattr(owner, name)
        is_compiled = torch.compiler.is_dynamo_compiling

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not is_compiled():  # a count would break the graph
                self._calls[name] += 1
            return original(*args, **kwargs)

        stored = inspect.getattr_static(owner, name)  # a method of a class written in C++ must stay one
        setattr(owner, name, counted)
        return lambda: setattr(owner, name, stored)


def kind_of(modules: Iterable[nn.Module]) -> str:
    """What wraps these modules: ddp, fsdp2, fsdp1, deepspeed or none."""
    for module in modules:
        names = {kind.__name__ for kind in type(module).__mro__}
        if "DistributedDataParallel" in names:
            return "ddp"
        if "FullyShardedDataParallel" in names:
            return "fsdp1"
        if "DeepSpeedEngine" in names:
            return "deepspeed"
        inner = getattr(module, "_orig_mod", None)
        if any(hasattr(part, "unshard") for part in module.modules()):
            return "fsdp2"
        if isinstance(inner, nn.Module) and (kind := kind_of((inner,))) != "none":
            return kind
    return "none"
