"""The `kernels` lever: the kernels for convolutions and attention."""

import dataclasses

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from scalescope.catalog.levers.kernels import Kernels
from scalescope.worker.training.step import Batch, Step

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def apply(step: Step, options: Kernels, device: torch.device) -> Step:
    """The step with the chosen kernels; the backward pass uses those of the forward pass."""
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    if options.attention == "auto":
        return step
    backend = _BACKENDS[options.attention]

    def forward(batch: Batch) -> Tensor:
        with sdpa_kernel(backend):
            return step.forward(batch)

    return dataclasses.replace(step, forward=forward)
