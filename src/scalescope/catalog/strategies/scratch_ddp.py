"""Card of the `scratch_ddp` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import setting
from scalescope.catalog.traits import MemoryLayout, StrategyTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDdp(StrategyTraits):
    """Data parallelism written out in a page of Python: buckets, hooks, asynchronous all-reduces."""

    ablations = ("without_communication", "without_optimizer")
    all_reduces_gradients = True

    bucket_cap_mb: float | None = setting(
        50.0,
        "Size in MiB at which a gradient bucket is closed; none puts all gradients of a dtype into one.",
        low=0.001,
        high=1e6,
    )

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """A page of code, and none of PyTorch's."""
        return Code(instead="it is a page of Python: worker/strategies/scratch_ddp.py of scalescope")

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """Gradients live in the buckets."""
        return MemoryLayout(keeps_gradients=True)
