"""The parameters that most bytes of gradients belong to, and what share of their rows a batch changes."""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 5
_LEAST_SHARE = 0.05  # of all bytes
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def largest_parameters(modules: Iterable[nn.Module], trained: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Names, bytes and changed rows of the largest, as they are after a backward pass."""
    names = {id(parameter): name for module in modules for name, parameter in module.named_parameters()}
    parameters = [parameter for parameter in trained if parameter.requires_grad]
    total = sum(map(_size, parameters))
    largest = sorted(parameters, key=_size, reverse=True)[:_MOST]
    return [
        {
            "name": _own_name(names.get(id(parameter), "")),
            "bytes": _size(parameter),
            "rows": parameter.shape[0] if parameter.ndim == 2 else None,
            "changed_share": _changed_share(parameter),
        }
        for parameter in largest
        if _size(parameter) >= _LEAST_SHARE * total
    ]


def _size(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _own_name(name: str) -> str:
    """As the user's model has it, inside of wrappers."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        parts = parts[1:]
    return ".".join(parts)


def _changed_share(parameter: Tensor) -> float | None:
    """Of the rows of a matrix, those with a gradient other than zero; None where that cannot be seen."""
    gradient = parameter.grad
    if gradient is None or gradient.ndim != 2 or hasattr(gradient, "to_local"):
        return None
    with torch.no_grad(), contextlib.suppress(RuntimeError, NotImplementedError):
        if gradient.is_sparse:
            share = int(gradient.coalesce().indices()[0].unique().numel()) / gradient.shape[0]
        else:
            share = float((gradient != 0).any(dim=1).float().mean())
        return share or None  # zero: it was cleared already
    return None
