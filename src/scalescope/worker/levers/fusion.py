"""The `fusion` lever: torch.compile, or TorchScript before it."""

import dataclasses
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

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
    compiled = step.forward
    if step.is_whole:  # the compiler does not take backward with it
        compile_in_place(step.own_models, options.compile)
    else:
        compiled = torch.compile(step.forward, mode=_mode(options.compile))

    def forward(batch: Batch) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(batch).clone()  # a CUDA graph overwrites its outputs, and losses are kept

    return dataclasses.replace(step, forward=forward)


def compile_in_place(models: Iterable[nn.Module], choice: str) -> None:
    """Compile the models of a user's own step or script, which keep their names there."""
    for model in models:
        model.compile(mode=_mode(choice))


def _mode(choice: str) -> str | None:
    return None if choice == "default" else choice
