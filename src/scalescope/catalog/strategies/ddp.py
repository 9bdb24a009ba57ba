"""Card of the `ddp` strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.setting import Lever, setting
from scalescope.catalog.traits import MemoryLayout, StrategyTraits


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
        lever=Lever(tries=(None, 1.0, 5.0, 25.0, 100.0), needs=("ranks",), changes="rounding"),
    )
    broadcast_buffers: bool = setting(
        False,
        "Broadcast buffers (batch-norm statistics) from rank 0 before every forward.",
        lever=Lever(tries=(False, True), needs=("ranks",), changes="rounding"),
    )
    static_graph: bool = setting(
        True,
        "Promise that the graph never changes, which lets DDP skip work every step.",
        lever=Lever(tries=(False, True), needs=("ranks",)),
    )
    gradient_as_bucket_view: bool = setting(
        True,
        "Let gradients live inside the buckets: saves a copy and the memory for it.",
        lever=Lever(tries=(False, True), needs=("ranks",)),
    )
    find_unused_parameters: bool = setting(
        False,
        "Look in every step for parameters without a gradient: a walk through the graph and an exchange.",
        neutral=False,
        lever=Lever(tries=(True,), needs=("ranks",)),
    )
    comm_hook: str = setting(
        "none",
        "Send gradients in 16 bits: half the traffic, two conversions, a little rounding.",
        choices=("none", "fp16", "bf16"),
        neutral="none",
        lever=Lever(tries=("fp16", "bf16"), needs=("ranks",), changes="rounding"),
    )

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout:
        """Buckets hold a second copy of all gradients, unless gradients live inside them."""
        return MemoryLayout(
            keeps_gradients=True, copies_gradients=not settings.get("gradient_as_bucket_view")
        )
