"""The collective that each rank began last: it shows which ranks wait for each other in different ones."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SLOT_BYTES = 256


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A call on the group of all ranks."""

    number: int  # how many calls this rank has made, this one included
    name: str
    tensor: str = ""  # its shape and type, where they must be the same on all ranks

    def __str__(self) -> str:
        return f"{self.name} of {self.tensor}" if self.tensor else self.name


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two ranks whose calls with the same number differ."""

    ranks: tuple[int, int]
    calls: tuple[CollectiveCall, CollectiveCall]


class CallSlot:
    """Where one rank keeps its last call; a write costs about a microsecond."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, call: CollectiveCall) -> None:
        text = json.dumps([call.number, call.name, call.tensor])
        os.pwrite(self._descriptor, text.encode()[:_SLOT_BYTES].ljust(_SLOT_BYTES), 0)


def slot_file(directory: Path, rank: int) -> Path:
    """The slot of a rank, in the directory that the ranks of a launch share."""
    return directory / f"call-{rank}"


def read_calls(directory: Path, world_size: int) -> list[CollectiveCall | None]:
    """The last call of every rank; None of those that recorded none."""
    return [_read(slot_file(directory, rank)) for rank in range(world_size)]


def find_disagreement(calls: Sequence[CollectiveCall | None]) -> Disagreement | None:
    """The first two ranks that are in different collectives at the same point.

    Ranks that made different numbers of calls may only be ahead of each other.
    """
    first_by_number: dict[int, tuple[int, CollectiveCall]] = {}
    for rank, call in enumerate(calls):
        if call is None:
            continue
        other, expected = first_by_number.setdefault(call.number, (rank, call))
        if call != expected:
            return Disagreement(ranks=(other, rank), calls=(expected, call))
    return None


def _read(path: Path) -> CollectiveCall | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        number, name, tensor = json.loads(path.read_bytes())
        return CollectiveCall(number=int(number), name=str(name), tensor=str(tensor))
    return None
