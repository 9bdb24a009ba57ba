"""The `precision` lever: the number format of matrix products."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from scalescope.catalog.levers.precision import Precision
from scalescope.worker.machine.rates import DTYPES, expect_emulation
from scalescope.worker.training.own_step import own_models
from scalescope.worker.training.step import Batch, Step, Workload


def prepare(workload: Workload, options: Precision, device: torch.device) -> Workload:
    """The models of a user's own step in the chosen format: around the whole step it would reach backward."""
    if workload.own_step is not None and options.precision in DTYPES:
        for model in own_models(workload):
            run_under_autocast(model, device, DTYPES[options.precision], returns_fp32=True)
    return workload


def apply(step: Step, options: Precision, device: torch.device) -> Step:
    """The step with its forward, and for fp16 its gradient scaling, in the chosen format."""
    set_tf32(options.precision == "tf32")
    if options.precision not in DTYPES:
        return step
    expect_emulation()
    if step.is_whole:
        return step
    step = _under_autocast(step, device, DTYPES[options.precision])
    return _with_gradient_scaler(step, device) if options.precision == "fp16" else step


def set_tf32(is_on: bool) -> None:
    """Allow tf32 for products and convolutions in fp32, or restore PyTorch's default, which allows it for
    convolutions: what is measured first is what an unchanged script does."""
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def other_tf32(is_on: bool | None) -> Iterator[None]:
    """Inside, tf32 is allowed or not; None does not change it."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if is_on is not None:
        set_tf32(is_on)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def run_under_autocast(
    model: nn.Module, device: torch.device, dtype: torch.dtype, *, returns_fp32: bool
) -> None:
    """Let a model compute in another format: backward must not run under it."""
    model.forward = under_autocast(model.forward, device, dtype, returns_fp32=returns_fp32)


def under_autocast(
    function: Callable[..., Any], device: torch.device, dtype: torch.dtype, *, returns_fp32: bool
) -> Callable[..., Any]:
    """A function that computes in another format. Where the loss is computed outside, it may need the outputs
    in fp32; where it is among the outputs, it is computed already."""

    @functools.wraps(function)
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            outputs = function(*args, **kwargs)
        return _full(outputs, dtype) if returns_fp32 and not _has_loss(outputs) else outputs

    return cast


def _has_loss(outputs: Any) -> bool:
    """Whether a number that gradients can be computed of is among several outputs."""
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    if not isinstance(outputs, tuple | list | dict):
        return False
    return any(isinstance(part, Tensor) and part.dim() == 0 and part.requires_grad for part in parts)


def _full(outputs: Any, dtype: torch.dtype) -> Any:
    """Outputs in fp32, as a loss under autocast would take them; objects of other classes stay."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == dtype else outputs
    if type(outputs) in (tuple, list):
        return type(outputs)(_full(part, dtype) for part in outputs)
    if type(outputs) is dict:
        return {name: _full(part, dtype) for name, part in outputs.items()}
    return outputs


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
