"""Heartbeats: a small shared-memory file in which every rank writes how far it is.

The launcher reads it while the ranks run, so that it can distinguish a hung rank from a busy one without any
message between them.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from scalescope.errors import CannotRun

# completed steps, begun steps, stage, phase, slowest warm-up step in seconds, planned steps
_SLOT = struct.Struct("<qqiidq")


class RankStage(IntEnum):
    """How far a rank is in its life; each has a time limit of its own."""

    STARTING = 0
    JOINING = 1
    WARMUP = 2
    STEADY = 3
    TEARDOWN = 4
    DONE = 5


class Phase(IntEnum):
    """Where inside a step a rank is."""

    INPUT = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's position. On a GPU `completed` follows finished work, `begun` what was queued."""

    completed: int
    begun: int
    stage: RankStage
    phase: Phase
    slowest_warmup_s: float
    planned: int = 0  # steps in all; 0 until the rank knows

    @property
    def position(self) -> tuple[int, int, int, int]:
        """Orders ranks by progress: the lowest is the one the others wait for."""
        return self.stage, self.completed, self.begun, self.phase


class Heartbeats:
    """All slots of one launch; a rank writes its own, the launcher reads all."""

    def __init__(self, path: Path, ranks: int, *, create: bool = False) -> None:
        if create:
            _create(path, _SLOT.size * ranks)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SLOT.size * ranks)

    def write(self, rank: int, beat: Beat) -> None:
        _SLOT.pack_into(
            self._memory,
            rank * _SLOT.size,
            beat.completed,
            beat.begun,
            beat.stage,
            beat.phase,
            beat.slowest_warmup_s,
            beat.planned,
        )

    def read(self, rank: int) -> Beat:
        completed, begun, stage, phase, slowest, planned = _SLOT.unpack_from(self._memory, rank * _SLOT.size)
        return Beat(completed, begun, RankStage(stage), Phase(phase), slowest, planned)

    def write_position(self, rank: int, completed: int, begun: int, phase: int) -> None:
        """The write of the timed loop: no object is made, stage and limits stay as they are."""
        _POSITION.pack_into(self._memory, rank * _SLOT.size, completed, begun)
        _PHASE.pack_into(self._memory, rank * _SLOT.size + _PHASE_OFFSET, phase)


def _create(path: Path, size: int) -> None:
    """Write the whole file: where /dev/shm is full, a file of that size without content ends us by SIGBUS."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(size))
    except OSError as error:
        raise CannotRun(f"{path}: could not be written: {error.strerror}") from None


_POSITION = struct.Struct("<qq")
_PHASE = struct.Struct("<i")
_PHASE_OFFSET = _POSITION.size + 4
