"""The `paced` workload: layers of parameters that sleep instead of computing, with real gradients."""

import torch
from torch import Tensor, nn

from scalescope.catalog.workloads.paced import Paced
from scalescope.worker.training.stand_in import Pace, PacedModel
from scalescope.worker.training.step import Batch, BuildContext, Data, Workload


def build(options: Paced, device: torch.device, context: BuildContext) -> Workload:
    """Layers of zeros; every step changes them by the learning rate, equally on all ranks."""
    layers = nn.ParameterList(torch.zeros(elements, device=device) for elements in options.layer_elements)
    pace = Pace(forward_s=options.forward_ms / 1e3, gradient_ready_s=options.gradient_ready_s)

    def synthesize(count: int, generator: torch.Generator) -> Batch:
        return torch.zeros(count, 1), torch.zeros(count)

    return Workload(
        model=PacedModel(layers, list(layers), pace), data=Data(synthesize=synthesize), loss=_output_is_loss
    )


def _output_is_loss(output: Tensor, targets: object) -> Tensor:
    """The model's output is its loss."""
    return output
