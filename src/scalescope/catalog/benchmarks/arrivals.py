"""Card of recorded arrivals: normal training steps of all ranks, to learn who waits for whom."""

from dataclasses import dataclass
from typing import ClassVar

from scalescope.catalog.benchmarks.train import Train

LEAST_STEPS = 3
MOST_STEPS = 10
_GPU_WARMUP = 11  # DDP takes times of its own in its first ten iterations, and waits for the GPU in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals(Train):
    """A few normal training steps of every rank under a profiler. Each rank keeps a summary of its trace: how
    long each exchange took, and how much of that was exposed."""

    heading = "Arrivals"
    measures = "when ranks arrive at exchanges"
    launch_figure: ClassVar[str | None] = None

    def warmup_on(self, device: str) -> int:
        """Steps before the recorded ones."""
        return max(self.warmup_steps, _GPU_WARMUP) if device == "cuda" else self.warmup_steps

    def steps(self) -> int:
        """How many steps a launch takes at most."""
        return self.warmup_on("cuda") + 1 + MOST_STEPS
