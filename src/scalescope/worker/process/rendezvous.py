"""Rendezvous: the store that connects the ranks of torchrun or srun: torch's own, or a file on one host."""

import datetime
import os
import time
from typing import Any

_STORE_FILE = "SCALESCOPE_STORE_FILE"  # set where all ranks are on one host, which needs no port
_LIMIT = datetime.timedelta(minutes=5)
_LONGEST_SLEEP_S = 0.25


class Rendezvous:
    """All ranks of a run, through the store that they share."""

    def __init__(self) -> None:
        import torch.distributed as dist

        path = os.environ.get(_STORE_FILE)
        if path is None:
            self.store, rank, ranks = next(dist.rendezvous("env://", timeout=_LIMIT))
            self.rank, self.world_size = int(rank), int(ranks)
            return
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.FileStore(path, self.world_size)

    def publish(self, key: str, value: bytes | str) -> None:
        """Store a value under a key, for all ranks."""
        self.store.set(f"scalescope/{key}", value)

    def get(self, key: str) -> bytes | None:
        """The value under a key; None if it has not been published yet."""
        name = f"scalescope/{key}"
        return bytes(self.store.get(name)) if self.store.check([name]) else None

    def wait(self, key: str, limit_s: float = float("inf")) -> bytes:
        """Wait until a key is published, however long rank 0 takes between two trials.

        This polls, because the store's own wait prints warnings after a minute.
        """
        deadline, sleep_s = time.monotonic() + limit_s, 0.005
        while (value := self.get(key)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{key} was not published within {limit_s:g} s")
            time.sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, 1.3 * sleep_s)
        return value

    def prefix(self, name: str) -> Any:
        """A part of the store for one trial: a second group must not find the keys of the first."""
        import torch.distributed as dist

        return dist.PrefixStore(f"scalescope/{name}", self.store)
