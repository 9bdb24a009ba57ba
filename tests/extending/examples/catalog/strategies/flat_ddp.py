"""Card of the `flat_ddp` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.traits import MemoryLayout, StrategyTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatDdp(StrategyTraits):
    """Data parallelism without overlap: after backward, one all-reduce of all gradients."""

    title = "flat DDP"
    ablations = ("without_communication",)
    all_reduces_gradients = True

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """At most a second copy of all gradients; it is made when activations are already freed."""
        return MemoryLayout(copies_gradients=True, is_upper_bound=True)
