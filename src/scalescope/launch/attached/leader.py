"""Whether rank 0 still runs: ranks of its host see a lock that the system frees when it ends.

A store in a file does not end with rank 0, as torch's TCP store does, and a rank may wait in it for minutes.
"""

import fcntl
import os
from pathlib import Path

from scalescope.launch.private_directory import is_abandoned


class Leader:
    """A file that rank 0 keeps locked as long as it runs."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "leader"
        self._held: int | None = None
        self.was_there = False

    def acquire(self) -> None:
        """Become the leader; the file has its name only once it is locked."""
        unnamed = self._path.with_suffix(".new")
        self._held = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        unnamed.rename(self._path)

    def release(self) -> None:
        """What the system does when the leader ends."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def is_gone(self) -> bool:
        """Whether there was a leader and it has ended."""
        try:
            gone = is_abandoned(self._path)
        except FileNotFoundError:
            return self.was_there
        self.was_there = True
        return gone
