"""Group: the ranks of one launch, which join through a store and leave in the right order."""

import datetime
import gc
import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import Store


@dataclass(frozen=True, kw_only=True)
class Group:
    """This rank and its peers; the plain baseline on one rank has no process group."""

    rank: int
    world_size: int
    joined: bool
    store: Store | None = None

    def barrier(self) -> None:
        """Wait for all ranks: their windows then start together."""
        if self.joined:
            dist.barrier()

    def exchange(self, topic: str, message: str) -> dict[int, str]:
        """Publish a message to all other ranks; returns each of theirs."""
        if self.store is None:
            return {}
        self.store.set(f"{topic}/{self.rank}", json.dumps(message))
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        return {rank: json.loads(self.store.get(f"{topic}/{rank}")) for rank in others}

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """The sums of values over all ranks."""
        if not self.joined:
            return values
        summed = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(summed)
        return [float(value) for value in summed.tolist()]

    def largest(self, value: float, device: torch.device) -> float:
        """The largest of all ranks' values; also a barrier."""
        if not self.joined:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared)

    def leave(self) -> None:
        """Leave the process group.

        DDP objects must be collected before: otherwise one launch in five deadlocked after a fork.
        """
        gc.collect()
        if self.joined:
            dist.destroy_process_group()


def join(
    store: Store,
    *,
    backend: str,
    rank: int,
    world_size: int,
    device: torch.device,
    timeout_s: float,
) -> Group:
    """Join the default process group over `store`."""
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" and backend == "nccl" else None,
    )
    return Group(rank=rank, world_size=world_size, joined=True, store=store)


def shared_device(store: Store, rank: int, world_size: int, identity: str) -> str | None:
    """Publish which device this rank uses; describes the clash if another rank uses the same one."""
    store.set(f"device/{rank}", json.dumps(identity))
    for other in range(world_size):
        if other != rank and json.loads(store.get(f"device/{other}")) == identity:
            return f"ranks {min(rank, other)} and {max(rank, other)} share {identity}"
    return None
