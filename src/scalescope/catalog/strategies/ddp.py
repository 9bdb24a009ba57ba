"""Card of the `ddp` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.setting import ExpectedEffect, Lever, setting
from scalescope.catalog.traits import MemoryLayout, StrategyTraits

_LINKS = "docs/levers/communication.md"
_WORK = "DDP then copies gradients, or looks through the graph, once more per step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp(StrategyTraits):
    """PyTorch's DistributedDataParallel: every rank a replica, gradients averaged in buckets."""

    title: ClassVar[str | None] = "DDP"
    ablations: ClassVar[tuple[str, ...]] = ("without_communication", "without_optimizer")
    all_reduces_gradients = True
    # In its first ten iterations DDP takes times of its own, for which the host waits for the device.
    least_gpu_warmup_steps = 11

    bucket_cap_mb: float | None = setting(
        50.0,
        "Size at which a gradient bucket is closed and sent, in MiB. Large buckets use the network "
        "better, small ones start earlier; none leaves PyTorch's own default (25, the first 1).",
        low=0.001,
        high=1e6,
        lever=Lever(
            tries=(None, 1.0, 5.0, 25.0, 100.0),
            is_compiled_in=True,
            needs=("ranks",),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.98}, source=_LINKS),),
        ),
    )
    broadcast_buffers: bool = setting(
        False,
        "Broadcast buffers (batch-norm statistics) from rank 0 before every forward.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            changes="rounding",
            expects=(
                ExpectedEffect(
                    value=True, factors={"communication": 1.05}, source="one exchange more per step"
                ),
                ExpectedEffect(
                    value=False, factors={"communication": 0.95}, source="one exchange less per step"
                ),
            ),
        ),
    )
    static_graph: bool = setting(
        True,
        "Promise that the graph never changes, which lets DDP skip work every step.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            expects=(
                ExpectedEffect(value=False, factors={"kernels": 1.02}, source=_WORK),
                ExpectedEffect(value=True, factors={"kernels": 0.98}, source=_WORK),
            ),
        ),
    )
    gradient_as_bucket_view: bool = setting(
        True,
        "Let gradients live inside the buckets: saves a copy and the memory for it.",
        lever=Lever(
            tries=(False, True),
            needs=("ranks",),
            expects=(
                ExpectedEffect(value=False, factors={"kernels": 1.02}, source=_WORK),
                ExpectedEffect(value=True, factors={"kernels": 0.98}, source=_WORK),
            ),
        ),
    )
    find_unused_parameters: bool = setting(
        False,
        "Look in every step for parameters without a gradient: a walk through the graph and an exchange.",
        neutral=False,
        lever=Lever(
            tries=(True,),
            needs=("ranks",),
            expects=(
                ExpectedEffect(factors={"kernels": 1.05}, source="walks through the graph in every step"),
            ),
        ),
    )
    comm_hook: str = setting(
        "none",
        "Send gradients in 16 bits: half the traffic, two conversions, a little rounding.",
        choices=("none", "fp16", "bf16"),
        neutral="none",
        lever=Lever(
            tries=("fp16", "bf16"),
            needs=("ranks",),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 0.55, "kernels": 1.03}, source=_LINKS),),
        ),
    )

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """Buckets hold a second copy of all gradients, unless gradients live inside them."""
        return MemoryLayout(
            keeps_gradients=True, copies_gradients=not settings.get("gradient_as_bucket_view")
        )
