"""The `fusion` lever: torch.compile, or TorchScript before it."""

import dataclasses
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from scalescope.catalog.levers.fusion import Fusion
from scalescope.worker.training.step import Batch, Step, Workload


def prepare(workload: Workload, options: Fusion, device: torch.device) -> Workload:
    """The model as TorchScript, before a wrapper holds it."""
    if not options.jit:
        return workload
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the setting's help mentions it
        return dataclasses.replace(workload, model=torch.jit.script(workload.model))


def apply(step: Step, options: Fusion, device: torch.device) -> Step:
    """The step with its forward compiled: dynamo recognises DDP and splits the graph at its buckets."""
    if options.compile == "none":
        return step
    mode = None if options.compile == "default" else options.compile
    compiled = _with_compiled_models(step, mode) if step.is_whole else torch.compile(step.forward, mode=mode)

    def forward(batch: Batch) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(batch).clone()  # a CUDA graph overwrites its outputs, and losses are kept

    return dataclasses.replace(step, forward=forward)


def _with_compiled_models(step: Step, mode: str | None) -> Callable[[Batch], Tensor]:
    """A user's own step, whose models are compiled in place: the compiler does not take backward with it."""
    for model in step.own_models:
        model.compile(mode=mode)
    return step.forward
