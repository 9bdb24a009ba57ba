"""Samples per step: what the outermost trained module receives while gradients are recorded."""

import gc
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scalescope import clocks
from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.levers import FORMATS

_DEEPEST = 3  # levels below the outermost module that are watched for who is called first
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")
_FIRST_NAMES = ("input_ids", "inputs", "x", "pixel_values")


class ModelInputs:
    """Finds the modules that the script calls, and counts what they get.

    Modules are found through the parameters of the optimizers, which avoids global hooks.
    `forward_s` adds up the host's time in these calls.
    """

    def __init__(self, guard: HookGuard) -> None:
        self.guard = guard
        self._hooks: list[Any] = []
        self._depth = 0
        self._began = 0.0
        self._shapes: dict[int, Counter[tuple[torch.Size | None, bool]]] = {}
        self._roots: dict[int, nn.Module] = {}
        self._watched: set[int] = set()
        self.forward_s = 0.0
        self._is_looking = True
        self.autocast: str | None = None  # the format of autocast inside calls, while modules are looked for
        self.received: Tensor | None = None  # by the last call, while modules are looked for

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Look which modules that hold these parameters are called."""
        for module in _holders({id(parameter) for parameter in parameters}):
            if id(module) not in self._watched:
                self._watched.add(id(module))
                self._hook(module)

    def settle(self) -> None:
        """Keep to the modules that were called by the script itself."""
        self.remove()
        self._is_looking = False
        for module in self._roots.values():
            self.attach(module)

    def attach(self, module: nn.Module) -> None:
        """Count the calls of a module that the script is known to call."""
        if is_called_directly(module):
            self._hooks.append(_CountedCall(module, self))
        else:
            self._hook(module)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._depth = 0
        self.received = None

    def reset(self) -> None:
        """Count from zero."""
        for shapes in self._shapes.values():
            shapes.clear()
        self.forward_s = 0.0

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that the script calls."""
        return list(self._roots.values())

    @property
    def calls(self) -> int:
        return max((shapes.total() for shapes in self._shapes.values()), default=0)

    def counted(self) -> tuple[int, str, str] | None:
        """Samples since the last reset, what they are, and whose input they were; None where there was none.

        Of several modules the one with the least counts: a discriminator sees real and generated samples.
        """
        samples = {
            identity: sum(shape[0] * count for (shape, _), count in shapes.items() if shape)
            for identity, shapes in self._shapes.items()
            if any(shape for shape, _ in shapes)
        }
        if not samples:
            return None
        identity = min(samples, key=lambda root: samples[root])
        name = type(_unwrapped(self._roots[identity])).__name__.removeprefix("FSDP")
        texts = [(shape, n) for (shape, is_text), n in self._shapes[identity].items() if shape and is_text]
        if len({shape[1] for shape, _ in texts}) == 1:
            return sum(shape.numel() * count for shape, count in texts), "tokens", name
        return samples[identity], "samples", name

    def count(self, module: nn.Module, tensor: Tensor | None) -> None:
        """A call of a module with this input."""
        self.shapes_of(module)[_shape(tensor)] += 1
        if self._is_looking:
            self.received = None if tensor is None else tensor.detach()
            self._note_autocast()

    def shapes_of(self, module: nn.Module) -> Counter[tuple[torch.Size | None, bool]]:
        """How often this module got which shapes, and whether these were integers in two dimensions."""
        self._roots[id(module)] = module
        return self._shapes.setdefault(id(module), Counter())

    def _hook(self, module: nn.Module) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:
            self._hooks.append(_CountedCall(module, self))
            return
        self._hooks += [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        ]

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1:
            if self._is_looking:  # some models enter autocast in their own forward
                self._note_autocast()
            return
        self._began = clocks.perf_counter()
        if torch.is_grad_enabled():
            with self.guard:
                self.count(module, _first_tensor(args, kwargs))

    def _note_autocast(self) -> None:
        if torch.is_grad_enabled():
            for device in ("cuda", "cpu"):
                if torch.is_autocast_enabled(device):
                    self.autocast = FORMATS.get(torch.get_autocast_dtype(device), self.autocast)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self.forward_s += clocks.perf_counter() - self._began


class _CountedCall:
    """Stands before a module, where `Module.compile` puts its compiled form.

    Hooks of a module cost ten times as much, would be compiled with it, and would be copied with it.
    """

    def __init__(self, module: Any, inputs: ModelInputs) -> None:
        self._module = module
        self._compiled = module._compiled_call_impl
        inner = self._compiled or module._call_impl
        now, is_training = clocks.perf_counter, torch.is_grad_enabled

        def call(*args: Any, **kwargs: Any) -> Any:
            if inputs._depth:
                return inner(*args, **kwargs)
            inputs._depth = 1
            began = now()
            if is_training():
                count(args, kwargs)
            try:
                return inner(*args, **kwargs)
            finally:
                inputs._depth = 0
                inputs.forward_s += now() - began

        def count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with inputs.guard:
                tensor = args[0] if args and type(args[0]) is Tensor else _first_tensor(args, kwargs)
                inputs.count(module, tensor)

        vars(module)["_compiled_call_impl"] = call

    def remove(self) -> None:
        if self._compiled is None:
            vars(self._module).pop("_compiled_call_impl", None)
        else:
            vars(self._module)["_compiled_call_impl"] = self._compiled


def is_called_directly(module: nn.Module) -> bool:
    """Whether torch calls the module through `__call__`, where something can be put before it."""
    return type(module).__call__ is nn.Module.__call__ or _is_wrapper(module)


def _shape(tensor: Tensor | None) -> tuple[torch.Size | None, bool]:
    if tensor is None:
        return None, False
    shape = tensor.shape
    return shape, len(shape) == 2 and not tensor.is_floating_point()


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first tensor of some size among the arguments."""
    named = [kwargs[name] for name in _FIRST_NAMES if name in kwargs]
    for value in (*args, *named, *kwargs.values()):
        tensor = _tensor_in(value)
        if tensor is not None:
            return tensor
    return None


def _tensor_in(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.ndim else None
    if isinstance(value, Mapping):
        return _first_tensor((), value)
    if isinstance(value, list | tuple):
        return _first_tensor(tuple(value), {})
    return None


def _holders(parameters: set[int]) -> list[nn.Module]:
    """The outermost modules that hold any of these parameters, and a few levels below them."""
    modules = [thing for thing in gc.get_objects() if _is_module(thing)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [module for module in modules if id(module) not in inner and _holds(module, parameters)]
    held = list(outermost)
    level = outermost
    for _ in range(_DEEPEST):
        level = [
            child
            for module in level
            if not _is_opaque(module)
            for child in module._modules.values()
            if child is not None and _holds(child, parameters)
        ]
        held += level
    return list({id(module): module for module in held}.values())


def _is_module(thing: Any) -> bool:
    return issubclass(type(thing), nn.Module) and "_modules" in vars(thing)


def _holds(module: nn.Module, parameters: set[int]) -> bool:
    return any(id(parameter) in parameters for parameter in module.parameters())


def _is_opaque(module: nn.Module) -> bool:
    """Whether what is inside is called by a wrapper or compiled code, where a hook would disturb."""
    return getattr(module, "_compiled_call_impl", None) is not None or _is_wrapper(module)


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ in _WRAPPERS


def _unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside wrappers."""
    while _is_wrapper(module):
        inner = getattr(module, "module", getattr(module, "_orig_mod", None))
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module
