"""Setup: for which ranks, topology and settings a step is predicted."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """Ranks on nodes; a node's network cards share what leaves it."""

    ranks_per_node: int | None = None  # None: all on one
    cards_per_node: int = 1
    cores_per_node: int | None = None  # that exchanges run on; None: not known, or enough for all ranks

    def crowding(self, ranks: int) -> float:
        """Ranks per core of a node, where there are more ranks than cores."""
        here = min(ranks, self.ranks_per_node or ranks)
        return 1.0 if self.cores_per_node is None else max(1.0, here / self.cores_per_node)

    def nodes(self, ranks: int) -> int:
        return 1 if self.ranks_per_node is None else math.ceil(ranks / self.ranks_per_node)


ON_ONE_NODE = RankLayout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One row that is asked for; names and values are those of the catalog's settings."""

    world_size: int
    strategy: str = "ddp"  # ddp, zero1, fsdp, pipeline
    backend: str = "nccl"  # gloo exchanges two buckets at a time, NCCL one
    layout: RankLayout = RankLayout()
    bucket_cap_mb: float | None = None  # None: 25 MiB after a first bucket of 1 MiB
    comm_hook: str = "none"  # fp16 and bf16 halve what is sent
    accumulation_steps: int = 1
    broadcast_buffers: bool = True  # before each forward pass, as DDP does unless told otherwise
    reshard_after_forward: bool | None = None  # FSDP; None: all blocks do, the root does not
    fsdp_param_dtype: str = "fp32"  # bf16 halves what is gathered
    micro_batches: int = 1  # pipeline: each as large as the profile's
    schedule: str = "1f1b"
