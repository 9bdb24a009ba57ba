"""Rank profile: what one rank's step consists of, and when each of its gradients becomes ready."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One parameter's gradient."""

    size_bytes: int
    ready_s: float  # after the backward pass began


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of the model that FSDP gathers as a whole, or a stage of a pipeline."""

    name: str
    parameter_bytes: int
    forward_s: float
    backward_s: float
    activation_bytes: int = 0  # that it hands to the next unit, of one micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """The parts of one rank's step without communication; forward and backward are of one micro-batch."""

    samples: int  # per rank and micro-batch
    input_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    rest_s: float = 0.0
    issue_s: float = 0.0  # by the host, of one micro-batch, where the GPU waits for it; 0 where it does not
    gradients: tuple[Gradient, ...] = ()  # in the order in which they become ready
    units: tuple[Unit, ...] = ()  # in the order of the forward pass
    buffer_bytes: int = 0  # that DDP broadcasts before each forward pass
    spread: float = 0.0  # standard deviation of a rank's step ÷ its mean
    launch_spread: float = 0.0  # the same between launches
    launches: int = 1

    @property
    def compute_s(self) -> float:
        """A whole step of one micro-batch without communication."""
        parts_s = self.input_s + self.forward_s + self.backward_s + self.optimizer_s + self.rest_s
        return max(parts_s, self.issue_s)

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.size_bytes for gradient in self.gradients)
