"""Levers that need no edit: precision, compilation, fused optimizers."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.attach.already import FUSED
from scalescope.worker.attach.hook_guard import Hooks
from scalescope.worker.levers.fusion import compile_in_place
from scalescope.worker.levers.precision import run_under_autocast, set_tf32
from scalescope.worker.machine.matmul import DTYPES


class ScriptLevers(Hooks):
    """What a trial changes about the script besides its wrapper and its loaders."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._precision = settings.get("precision")
        self._compile = str(settings.get("compile", "none"))
        self._fused = bool(settings.get("fused_optimizer", False))
        self.fused = 0

    def install(self) -> None:
        """Before the script makes anything."""
        self._set_tf32()
        if self._fused:
            self._undo += [self._fusing(kind) for kind in FUSED]

    def apply(self, modules: Iterable[nn.Module]) -> None:
        """Once the modules that the script calls are known."""
        self._set_tf32()  # the script may have set it in the meantime
        modules = list(modules)
        if self._precision in DTYPES:
            for module in modules:
                device = next(module.parameters()).device
                run_under_autocast(module, device, DTYPES[self._precision], returns_fp32=True)
        if self._compile != "none":
            compile_in_place([getattr(module, "module", module) for module in modules], self._compile)

    def check(self) -> None:
        """Refuse a lever that changed nothing."""
        if self._fused and not self.fused:
            raise BadInput("fused_optimizer: the script makes no optimizer that can be fused")

    def _set_tf32(self) -> None:
        if self._precision in ("fp32", "tf32"):
            set_tf32(self._precision == "tf32")

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
