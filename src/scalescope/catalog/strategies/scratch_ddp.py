"""Card of the `scratch_ddp` strategy."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting
from scalescope.catalog.traits import StrategyTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDdp(StrategyTraits):
    """Data parallelism written out in a page of Python: buckets, hooks, asynchronous all-reduces."""

    ablations = ("noop_comm",)

    bucket_cap_mb: float | None = setting(
        50.0,
        "Size at which a gradient bucket is closed, in MiB; none puts all gradients of a type into one.",
        low=0.001,
        high=1e6,
    )

    def keeps_gradients(self) -> bool:
        """Gradients are views into the buckets."""
        return True
