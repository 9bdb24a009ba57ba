"""Card of the `paced` workload."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting
from scalescope.catalog.traits import ModelSize, WorkloadTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced(WorkloadTraits):
    """Sleeps instead of computing but exchanges real gradients: many ranks share few cores honestly."""

    defaults = {"batch_size": 32}  # noqa: RUF012

    forward_ms: float = setting(10.0, "Time of a forward pass in ms, for any batch size.", low=0, high=1e7)
    backward_ms: float = setting(
        20.0,
        "Time of a backward pass in ms, for any batch size; the layers' gradients become ready at equal "
        "intervals.",
        low=0,
        high=1e7,
    )
    layers: int = setting(8, "Number of layers, each with one gradient to exchange.", low=1, high=10_000)
    layer_mb: float = setting(1.0, "Parameters per layer in MiB of fp32.", low=0.001, high=65_536)
    first_layer_mb: float | None = setting(
        None,
        "Parameters of the first layer in MiB; its gradient is ready last. The default is layer_mb.",
        none_word="same",
        low=0.001,
        high=65_536,
    )

    @property
    def layer_elements(self) -> tuple[int, ...]:
        """Parameters of every layer, the first one first."""
        first = self.layer_mb if self.first_layer_mb is None else self.first_layer_mb
        sizes = (first, *[self.layer_mb] * (self.layers - 1))
        return tuple(round(size * 2**20 / 4) for size in sizes)

    @property
    def gradient_ready_s(self) -> tuple[float, ...]:
        """When each gradient is ready after the backward pass began, the last layer's first."""
        share = self.backward_ms / 1e3 / self.layers
        return tuple(share * number for number in range(1, self.layers + 1))

    def model_size(self) -> ModelSize:
        """Parameters alone: nothing is computed that would be kept."""
        return ModelSize(parameters=sum(self.layer_elements))

    def least_step_s(self) -> float:
        """What is slept in a step."""
        return (self.forward_ms + self.backward_ms) / 1e3
