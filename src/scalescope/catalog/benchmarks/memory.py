"""Card of the memory benchmark: what a training step holds, and how large a batch may become."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.setting import setting
from scalescope.catalog.training import Training

BATCHES = (1, 2, 4, 8)  # small batches show as much about memory as large ones, in less time
# The optimizer makes its state in the first. DDP makes its lasting buckets after the first, and after the
# second with a static graph: while it does, the buckets from before are there too.
# Builds of torch for ARM bring an allocator that reserves 1 GiB at a time, inside which no limit is noticed.
# It reads this when torch is loaded; others do not know it.
EXACT_ALLOCATION = {"MIMALLOC_ARENA_RESERVE": "0"}
WARMUP_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Training):
    """Memory of a training step: what lasts, what a batch adds, and where the peak is."""

    heading = "Memory"
    measures = "memory"
    measures_by_purpose: ClassVar[Mapping[str | None, str]] = {"search": "whether the batch fits"}
    launch_figure: ClassVar[str | None] = "peak memory"
    oom_is_result = True
    measures_time = False
    optional_purposes: ClassVar[tuple[str, ...]] = ("brief", "search")
    lists_failures_as_training = False

    memory_limit: int | None = setting(
        None,
        "Memory limit per rank, in addition to what torch itself uses (512M, 8GiB). On the CPU it also "
        "limits the search for the largest batch.",
        kind="bytes",
        low=1 << 20,
        high=2**50,
        common="Memory",
        brief="Find the batch that fits: 512M, 8GiB.",
    )
    search: bool = setting(
        True,
        "Search for the largest batch that fits by trying batch sizes.",
        sweep=False,
        common="Memory",
        brief="Do not search for the largest batch that fits.",
    )
    purpose: str = setting(
        "measure",
        "What to measure: everything with forecasts, another batch to compare with it, a brief version for "
        "a larger run, or only whether the batch fits.",
        choices=("measure", "compare", "brief", "search"),
        internal=True,
    )

    def steps(self) -> int:
        """How many steps a launch takes: three to settle, and one that is looked at."""
        return WARMUP_STEPS + (self.purpose != "search")

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a batch that cannot be shared and data that the model cannot read."""
        Training.check_job(values)
