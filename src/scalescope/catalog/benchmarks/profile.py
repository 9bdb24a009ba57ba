"""Card of the profiled training: the same steps, recorded instead of timed."""

from dataclasses import dataclass
from typing import ClassVar

from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.setting import setting

ALL_RANKS = "all"
_LEAST_WARMUP = 11  # DDP takes times of its own in its first ten iterations, which would show in the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Train):
    """A few training steps of chosen ranks, recorded as a trace."""

    heading = "Profile"
    measures = "a trace"
    launch_figure: ClassVar[str | None] = None

    profile_steps: int = setting(3, "Steps to record.", low=1, high=100, internal=True)
    profile_ranks: str = setting(ALL_RANKS, "Ranks to record, by number.", sweep=False, internal=True)
    profile_with: str = setting(
        "torch",
        "Record a trace, or only mark ranges for another profiler.",
        choices=("torch", "nvtx"),
        internal=True,
    )

    @property
    def warmup(self) -> int:
        """Steps before the recorded ones."""
        return max(self.warmup_steps, _LEAST_WARMUP)

    @property
    def recorded(self) -> int:
        """Steps under the profiler; the first pays for its start and is not read."""
        return self.profile_steps + 1

    @property
    def counted(self) -> int:
        """Steps after them in which DDP takes its own times; its first two belong to earlier steps."""
        return self.profile_steps + 2

    def steps(self) -> int:
        """How many steps a launch takes."""
        return self.warmup + self.recorded + self.counted

    def records(self, rank: int) -> bool:
        """Whether this rank is one of those to record."""
        return self.profile_ranks == ALL_RANKS or str(rank) in self.profile_ranks.split(",")
