"""The `precision` lever: the number format of matrix products."""

import dataclasses

import torch
from torch import Tensor

from scalescope.catalog.levers.precision import Precision
from scalescope.worker.machine.emulation import expect_emulation
from scalescope.worker.machine.matmul import DTYPES
from scalescope.worker.training.own_step import own_models, run_under_autocast
from scalescope.worker.training.step import Batch, Step, Workload


def prepare(workload: Workload, options: Precision, device: torch.device) -> Workload:
    """The models of a user's own step in the chosen format: around the whole step it would reach backward."""
    if workload.own_step is not None and options.precision in DTYPES:
        for model in own_models(workload):
            run_under_autocast(model, device, DTYPES[options.precision])
    return workload


def apply(step: Step, options: Precision, device: torch.device) -> Step:
    """The step with its forward, and for fp16 its gradient scaling, in the chosen format."""
    use_tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = use_tf32
    torch.backends.cudnn.allow_tf32 = use_tf32  # on by default: fp32 would not be fp32
    if options.precision not in DTYPES:
        return step
    expect_emulation()
    if step.is_whole:
        return step
    step = _under_autocast(step, device, DTYPES[options.precision])
    return _with_gradient_scaler(step, device) if options.precision == "fp16" else step


def _under_autocast(step: Step, device: torch.device, dtype: torch.dtype) -> Step:
    plain = step.forward

    def forward(batch: Batch) -> Tensor:
        with torch.autocast(device.type, dtype=dtype):
            return plain(batch)

    return dataclasses.replace(step, forward=forward)


def _with_gradient_scaler(step: Step, device: torch.device) -> Step:
    scaler = torch.amp.GradScaler(device.type)

    def backward(loss: Tensor) -> None:
        step.backward(scaler.scale(loss))

    def apply() -> None:
        scaler.step(step.optimizer)
        scaler.update()

    return dataclasses.replace(step, backward=backward, apply=apply)
