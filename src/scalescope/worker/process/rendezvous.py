"""Meeting: the store in which ranks that others started find each other: torch's, or a file on one host."""

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

    def say(self, key: str, value: bytes | str) -> None:
        self.store.set(f"scalescope/{key}", value)

    def heard(self, key: str) -> bytes | None:
        """What was said under a key; None where nothing was yet."""
        name = f"scalescope/{key}"
        return bytes(self.store.get(name)) if self.store.check([name]) else None

    def hear(self, key: str, limit_s: float = float("inf")) -> bytes:
        """Wait for what is said under a key, however long rank 0 thinks between two trials.

        Asked for again and again: the store's own way of waiting prints warnings when it takes a minute.
        """
        deadline, sleep_s = time.monotonic() + limit_s, 0.005
        while (found := self.heard(key)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody said {key} within {limit_s:g} s")
            time.sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, 1.3 * sleep_s)
        return found

    def prefix(self, name: str) -> Any:
        """A part of the store for one trial: over the same keys a second group finds the first's."""
        import torch.distributed as dist

        return dist.PrefixStore(f"scalescope/{name}", self.store)
