"""Logs of ranks and commands: kept from filling the disk, their end kept readable."""

import contextlib
import os
from pathlib import Path

_LARGEST_BYTES = 64 << 20
_KEPT_END_BYTES = 64 << 10  # what was printed last says why a process ended


def cap_log(log: Path) -> None:
    """Shorten a log that became too large; its writer appends, so it writes on."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= _LARGEST_BYTES:
            return
        half = _LARGEST_BYTES // 2
        end = tail_of(log, min(half, _KEPT_END_BYTES))
        os.truncate(log, half - len(end))
        with log.open("ab") as file:
            file.write(end)


def tail_of(log: Path, size: int) -> bytes:
    """At most the last `size` bytes of a file; nothing where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except OSError:
        return b""
