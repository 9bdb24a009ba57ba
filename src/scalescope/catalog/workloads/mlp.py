"""Card of the `mlp` workload."""

from dataclasses import dataclass
from itertools import pairwise

from scalescope.catalog.setting import Lever, PerDevice, setting
from scalescope.catalog.traits import ModelSize, WorkloadTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(WorkloadTraits):
    """Equal linear layers with ReLU on random vectors: compute grows with the batch, gradients do not."""

    input_dim: int = setting(PerDevice(cpu=1024, cuda=4096), "Input features per sample.", low=1, high=2**20)
    hidden_dim: int = setting(
        PerDevice(cpu=1024, cuda=4096),
        "Width of the hidden layers; gradients and compute grow with its square.",
        low=1,
        high=2**20,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    num_layers: int = setting(
        PerDevice(cpu=6, cuda=3),
        "Number of hidden layers, including the one that reads the input; the output layer is extra.",
        low=1,
        high=10_000,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    output_dim: int = setting(
        PerDevice(cpu=512, cuda=2048), "Classes of the output layer.", low=1, high=2**20
    )

    @property
    def layer_widths(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of every linear layer, first to last."""
        widths = [self.input_dim, *[self.hidden_dim] * self.num_layers, self.output_dim]
        return tuple(pairwise(widths))

    def model_size(self) -> ModelSize:
        """Weights and biases; what each layer hands on is kept."""
        return ModelSize(
            parameters=sum((inputs + 1) * outputs for inputs, outputs in self.layer_widths),
            sample_bytes=4 * self.input_dim,
            kept_values=sum(outputs for _, outputs in self.layer_widths),
        )

    def flops_per_sample(self) -> int:
        """Floating-point operations of forward and backward for one sample.

        Two per weight forward and four backward (input and weight gradients); the first layer has no
        input gradient to compute.
        """
        weights = [inputs * outputs for inputs, outputs in self.layer_widths]
        return 6 * sum(weights) - 2 * weights[0]
