"""Levers of a script: what it does already, and what can be switched without an edit."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW

from scalescope.errors import BadInput
from scalescope.worker.engine.profiling import is_compiled
from scalescope.worker.hooks.hook_guard import Hooks
from scalescope.worker.levers.fusion import compile_in_place
from scalescope.worker.levers.precision import other_tf32, run_under_autocast, set_tf32, under_autocast
from scalescope.worker.machine.rates import DTYPES

# ---- What a script does already of what levers would do: number formats, compilation, fused optimizers


FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
FUSED = (Adam, AdamW, SGD, Adagrad)  # that torch can fuse


def already_there(
    modules: Sequence[nn.Module],
    optimizers: Sequence[Any],
    parameters: Iterable[Tensor],
    device: torch.device,
) -> dict[str, int | str | None]:
    """Facts of a script before anything of it is changed; None is unknown."""
    return {
        "parameter_format": _format_of(modules, parameters),
        "tf32": _allows_tf32() if device.type == "cuda" else None,
        "compiled": int(any(map(is_compiled, modules))),
        "fused": int(bool(optimizers) and all(map(_is_fused, optimizers))),
        "fusible": int(any(isinstance(inner, FUSED) for each in optimizers for inner in _with_inner(each))),
    }


def _format_of(modules: Sequence[nn.Module], parameters: Iterable[Tensor]) -> str | None:
    """The format in which all parameters are, or in which FSDP2 computes with them."""
    dtypes = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    for module in modules:
        with contextlib.suppress(Exception):  # private to torch
            dtypes = {module._get_fsdp_state()._mp_policy.param_dtype or dtype for dtype in dtypes}  # type: ignore[operator]
    return FORMATS.get(dtypes.pop()) if len(dtypes) == 1 else None


def _allows_tf32() -> int | None:
    """For matrix products. torch refuses to tell where a script mixes both ways of setting it."""
    try:
        return int(torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return None


def _is_fused(optimizer: Any) -> bool:
    """Whether a step of an optimizer, of torch's or of another library, is one kernel."""
    if any(inner.defaults.get("fused") for inner in _with_inner(optimizer) if hasattr(inner, "defaults")):
        return True
    kind = type(optimizer)
    return not kind.__module__.startswith("torch.") and "fused" in kind.__name__.lower()


def _with_inner(optimizer: Any) -> list[Any]:
    """An optimizer, and the one that it wraps."""
    wrapped = (getattr(optimizer, name, None) for name in ("optim", "optimizer"))
    return [optimizer, *(inner for inner in wrapped if inner is not None)]


# ---- Levers that need no edit: precision, compilation, fused optimizers


_COMPILED_CALL = "_compiled_call_impl"  # what torch calls in place of a module, where it is set


class ScriptLevers(Hooks):
    """What a trial changes about the script besides its wrapper and its loaders."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._precision = settings.get("precision")
        self._compile = str(settings.get("compile", "none"))
        self._fused = bool(settings.get("fused_optimizer", False))
        self.fused = 0
        self._modules: list[nn.Module] = []
        # By their settings, what was put on the modules: None is the script's own.
        self._forwards: dict[str | None, list[Any]] = {}
        self._compiled: dict[tuple[str, str | None], list[Any]] = {}
        self._own_calls: list[Any] = []

    def install(self) -> None:
        """Before the script makes anything."""
        self._set_tf32()
        if self._fused:
            self._undo += [self._fusing(kind) for kind in FUSED]

    def apply(self, modules: Iterable[nn.Module]) -> None:
        """Once the modules that the script calls are known."""
        self._set_tf32()  # the script may have set it in the meantime
        self._modules = list(modules)
        self._forwards = {None: [vars(module).get("forward") for module in self._modules]}
        self._own_calls = [vars(module).get(_COMPILED_CALL) for module in self._bare_modules()]
        if self._compile == "none":
            self._cast(self._precision)
        else:
            self._use_compiled(self._compile, self._precision)

    @contextlib.contextmanager
    def switched(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Inside, precision and compilation are those of other settings."""
        precision, mode = settings.get("precision"), str(settings.get("compile", "none"))
        forwards = [vars(module).get("forward") for module in self._modules]
        calls = [vars(module).get(_COMPILED_CALL) for module in self._bare_modules()]
        with other_tf32(precision == "tf32" if precision in ("fp32", "tf32") else None):
            try:
                if mode == "none":
                    _set_on(_COMPILED_CALL, self._bare_modules(), self._own_calls)
                    self._cast(precision)
                else:
                    self._use_compiled(mode, precision)
                yield
            finally:
                _set_on("forward", self._modules, forwards)
                _set_on(_COMPILED_CALL, self._bare_modules(), calls)

    def _use_compiled(self, mode: str, precision: str | None) -> None:
        """Call modules as they were compiled for these settings; each of them is compiled once.

        The format is chosen around what is compiled, as scripts do it: inside, parts stayed in fp32.
        """
        self._cast(None)
        modules = self._bare_modules()
        if (mode, precision) not in self._compiled:
            _set_on(_COMPILED_CALL, modules, [None] * len(modules))
            compile_in_place(modules, mode)
            calls = [getattr(module, _COMPILED_CALL) for module in modules]
            if precision in DTYPES:
                calls = [
                    under_autocast(call, _device_of(module), DTYPES[str(precision)], returns_fp32=True)
                    for call, module in zip(calls, modules, strict=True)
                ]
            self._compiled[mode, precision] = calls
        _set_on(_COMPILED_CALL, modules, self._compiled[mode, precision])

    def _cast(self, precision: str | None) -> None:
        """Let modules compute in a format; what does that is kept."""
        key = precision if precision in DTYPES else None
        if key not in self._forwards:
            self._cast(None)
            for module in self._modules:
                run_under_autocast(module, _device_of(module), DTYPES[str(key)], returns_fp32=True)
            self._forwards[key] = [vars(module).get("forward") for module in self._modules]
        _set_on("forward", self._modules, self._forwards[key])

    def _bare_modules(self) -> list[nn.Module]:
        """Without the wrapper, which is not compiled."""
        return [getattr(module, "module", module) for module in self._modules]

    def check(self) -> None:
        """Refuse a lever that changed nothing."""
        if self._fused and not self.fused:
            raise BadInput("fused_optimizer: the script creates no optimizer that has a fused version")

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


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _set_on(name: str, modules: Iterable[nn.Module], values: Iterable[Any]) -> None:
    """Set an attribute of each module itself; None removes it."""
    for module, value in zip(modules, values, strict=True):
        if value is not None:
            setattr(module, name, value)
        elif name in vars(module):
            delattr(module, name)
