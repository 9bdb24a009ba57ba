"""Card of the recorded step: what one rank's step on a GPU consists of, and which lines wait for the GPU."""

from dataclasses import dataclass
from typing import ClassVar

from scalescope.catalog.benchmarks.train import Train

LEAST_STEPS = 3
MOST_STEPS = 10  # recorded
PLAIN_STEPS = 20  # at most, without a profiler, in the same launch
WATCHED_STEPS = 2  # in which every wait for the GPU is located; as many again, in which its line is timed
_WARMUP = 11  # DDP takes times of its own in its first ten iterations, and waits for the GPU in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown(Train):
    """A few normal training steps under a profiler, read by the rank itself: each instant of a step belongs
    to one of its parts. Then a few more in which every wait for the GPU is located."""

    heading = "Breakdown"
    measures = "what a step consists of"
    launch_figure: ClassVar[str | None] = None
    measures_time = False  # shares of a step; how long it takes is measured in launches of its own

    def warmup_on(self, device: str) -> int:
        """Steps before the recorded ones."""
        return max(self.warmup_steps, _WARMUP) if device == "cuda" else self.warmup_steps

    def steps(self) -> int:
        """How many steps a launch takes at most."""
        return self.warmup_on("cuda") + PLAIN_STEPS + 1 + MOST_STEPS + 2 * WATCHED_STEPS
