"""The `mlp` workload: linear layers with ReLU on random vectors, cross-entropy on random classes."""

import torch
from torch import nn

from scalescope.catalog.workloads.mlp import Mlp
from scalescope.worker.training.step import Batch, BuildContext, Data, Workload


def build(options: Mlp, device: torch.device, context: BuildContext) -> Workload:
    """The model with freshly initialised parameters on `device`."""
    layers: list[nn.Module] = []
    for inputs, outputs in options.layer_widths:
        layers += [nn.Linear(inputs, outputs, device=device), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])

    def synthesize(count: int, generator: torch.Generator) -> Batch:
        vectors = torch.randn(count, options.input_dim, generator=generator)
        classes = torch.randint(options.output_dim, (count,), generator=generator)
        return vectors, classes

    return Workload(model=model, data=Data(synthesize=synthesize), loss=nn.functional.cross_entropy)
