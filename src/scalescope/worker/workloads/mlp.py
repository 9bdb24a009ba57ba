"""The `mlp` workload: linear layers with ReLU on random vectors, cross-entropy on random classes."""

from itertools import cycle

import torch
from torch import nn

from scalescope.catalog.workloads.mlp import Mlp
from scalescope.worker.step import Batches, Workload

_DISTINCT_BATCHES = 2  # made once and kept on the device: input costs nothing here


def build(options: Mlp, device: torch.device) -> Workload:
    """The model with freshly initialised parameters on `device`."""
    layers: list[nn.Module] = []
    for inputs, outputs in options.layer_widths:
        layers += [nn.Linear(inputs, outputs, device=device), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])

    def batches(batch_size: int, generator: torch.Generator) -> Batches:
        made = []
        for _ in range(_DISTINCT_BATCHES):
            vectors = torch.randn(batch_size, options.input_dim, generator=generator)
            classes = torch.randint(options.output_dim, (batch_size,), generator=generator)
            made.append((vectors.to(device), classes.to(device)))
        return cycle(made)

    return Workload(model=model, batches=batches, loss=nn.functional.cross_entropy)
