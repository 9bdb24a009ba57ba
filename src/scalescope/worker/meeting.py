"""Meeting: the store in which ranks that others started find each other, and whether it is still led.

On several hosts it is torch's TCP store, which ends with rank 0. On one host it is a file, which does not:
there rank 0 holds a lock that the system lets go of when it ends.
"""

import contextlib
import datetime
import fcntl
import os
import time
from pathlib import Path
from typing import Any

_STORE_FILE = "SCALESCOPE_STORE_FILE"  # set where all ranks are on one host, which needs no port
_LIMIT = datetime.timedelta(minutes=5)
_LONGEST_SLEEP_S = 0.25


class Meeting:
    """All ranks of a run, through the store that they share."""

    def __init__(self) -> None:
        import torch.distributed as dist

        path = os.environ.get(_STORE_FILE)
        self._leader = None if path is None else _Leader(Path(path).with_name("leader"))
        if path is None:
            self.store, rank, ranks = next(dist.rendezvous("env://", timeout=_LIMIT))
            self.rank, self.world_size = int(rank), int(ranks)
            return
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.FileStore(path, self.world_size)
        if self.rank == 0 and self._leader is not None:
            self._leader.take()

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
            if self.rank != 0 and self._leader is not None and self._leader.is_gone():
                raise ConnectionError("rank 0 is gone")
            time.sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, 1.3 * sleep_s)
        return found

    def prefix(self, name: str) -> Any:
        """A part of the store for one trial: over the same keys a second group finds the first's."""
        import torch.distributed as dist

        return dist.PrefixStore(f"scalescope/{name}", self.store)


class _Leader:
    """A file that rank 0 keeps locked as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_there = False

    def take(self) -> None:
        """Become the leader; the file has its name only once it is locked."""
        unnamed = self._path.with_suffix(".new")
        self._held = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        unnamed.rename(self._path)

    def let_go(self) -> None:
        """What the system does when the leader ends."""
        os.close(self._held)

    def is_gone(self) -> bool:
        """Whether there was a leader and it has ended."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return self._was_there
        self._was_there = True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            with contextlib.suppress(OSError):
                os.close(file)
        return True
