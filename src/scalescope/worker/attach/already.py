"""What a script does already of what levers would do: number formats, compilation, fused optimizers."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW

from scalescope.worker.engine.profiling import is_compiled

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
