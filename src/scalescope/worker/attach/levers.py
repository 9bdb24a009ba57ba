"""Levers that need no edit: precision of products, autocast, compilation, fused optimizers."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW

from scalescope.catalog.workloads.command import SCRIPT
from scalescope.errors import BadInput
from scalescope.worker.attach.hook_guard import Hooks
from scalescope.worker.machine.matmul import DTYPES

_FUSED = (Adam, AdamW, SGD, Adagrad)


class ScriptLevers(Hooks):
    """What a trial changes about the script besides its wrapper and its loaders."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._matmul = str(settings.get("matmul_precision", SCRIPT))
        self._autocast = str(settings.get("autocast", SCRIPT))
        self._compile = str(settings.get("compile", "none"))
        self._fused = bool(settings.get("fused_optimizer", False))
        self.fused = 0

    def install(self) -> None:
        """Before the script makes anything."""
        if self._matmul != SCRIPT:
            torch.set_float32_matmul_precision(self._matmul)
            original = torch.set_float32_matmul_precision
            torch.set_float32_matmul_precision = _ignore
            self._undo.append(lambda: setattr(torch, "set_float32_matmul_precision", original))
        if self._fused:
            self._undo += [self._fusing(kind) for kind in _FUSED]

    def apply(self, modules: Iterable[nn.Module]) -> None:
        """Once the modules that the script calls are known."""
        for module in modules:
            if self._autocast != SCRIPT:
                _run_under_autocast(module, DTYPES[self._autocast])
            if self._compile != "none":
                inner = getattr(module, "module", module)
                inner.compile(mode=None if self._compile == "default" else self._compile)

    def check(self) -> None:
        """Refuse a lever that changed nothing."""
        if self._fused and not self.fused:
            raise BadInput("fused_optimizer: the script makes no optimizer that can be fused")

    def _fusing(self, kind: type[Any]) -> Callable[[], None]:
        original = kind.__init__
        levers = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if args and not isinstance(args[0], list | tuple):
                args = (list(args[0]), *args[1:])  # a generator could not be read twice
            if kwargs.get("fused") is None:
                with contextlib.suppress(RuntimeError, ValueError, TypeError):
                    arguments = {name: value for name, value in kwargs.items() if name != "foreach"}
                    original(self, *args, **{**arguments, "fused": True})
                    levers.fused += 1
                    return
            original(self, *args, **kwargs)

        kind.__init__ = init

        def undo() -> None:
            kind.__init__ = original

        return undo


def _ignore(precision: str) -> None:
    """Stands in place of the function by which the script would set the precision again."""


def _run_under_autocast(module: nn.Module, dtype: torch.dtype) -> None:
    forward = module.forward
    device = next(module.parameters()).device.type

    def autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return forward(*args, **kwargs)

    module.forward = autocast
