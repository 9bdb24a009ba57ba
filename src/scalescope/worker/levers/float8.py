"""The `float8` lever: linear layers that compute in 8 bits, by torchao."""

import importlib
import importlib.util

import torch

from scalescope.catalog.levers.float8 import Float8
from scalescope.errors import CannotRun
from scalescope.worker.training.step import Workload

_MULTIPLE = 16  # sizes that the matrix units take in 8 bits


def prepare(workload: Workload, options: Float8, device: torch.device) -> Workload:
    """The model with its linear layers converted, before a wrapper holds it."""
    if not options.float8:
        return workload
    if importlib.util.find_spec("torchao") is None:
        raise CannotRun("float8 requires torchao, which is not installed here; pip install torchao")
    torchao = importlib.import_module("torchao.float8")
    torchao.convert_to_float8_training(workload.model, module_filter_fn=_fits)
    return workload


def _fits(module: torch.nn.Module, name: str) -> bool:
    """Whether a layer's sizes are multiples of what the units take."""
    if not isinstance(module, torch.nn.Linear):
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0
