"""The collectives that `comm` measures: what each does, and which bandwidth its time stands for."""

from collections.abc import Callable
from dataclasses import dataclass

from scalescope.catalog.setting import nearest
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, as nccl-tests counts it."""

    name: str
    purpose: str
    bus_factor: Callable[[int], float]  # of the number of ranks: bus over algorithm bandwidth
    redop: str = "none"
    root: int = -1
    shares_array: bool = False  # whether the size counts the whole array; a rank holds part of it
    has_data: bool = True
    in_place: tuple[bool, ...] = (True,)  # the ways torch offers: in place, out of place


def _sent_share(ranks: int) -> float:
    """Of the whole array, one part does not travel."""
    return (ranks - 1) / ranks


def _twice_around(ranks: int) -> float:
    """Every byte goes round a ring twice, but for the part that stays."""
    return 2 * (ranks - 1) / ranks


def _once(ranks: int) -> float:
    """Every byte crosses each link once."""
    return 1.0


def _nothing(ranks: int) -> float:
    return 0.0


_ALL = (
    Collective(
        name="all_gather",
        purpose="Every rank gets the parts of all: what FSDP does with parameters.",
        bus_factor=_sent_share,
        shares_array=True,
        in_place=(False, True),
    ),
    Collective(
        name="all_reduce",
        purpose="Sum over all ranks, the result on every rank: what DDP does with gradients.",
        bus_factor=_twice_around,
        redop="sum",
    ),
    Collective(
        name="all_to_all",
        purpose="Every rank sends a part to every other: expert parallelism.",
        bus_factor=_sent_share,
        shares_array=True,
        in_place=(False,),
    ),
    Collective(
        name="barrier",
        purpose="All ranks wait for each other; nothing is sent.",
        bus_factor=_nothing,
        has_data=False,
        in_place=(False,),
    ),
    Collective(
        name="broadcast", purpose="One rank's array to all: start-up and buffers.", bus_factor=_once, root=0
    ),
    Collective(
        name="reduce",
        purpose="Sum over all ranks, the result on one.",
        bus_factor=_once,
        redop="sum",
        root=0,
    ),
    Collective(
        name="reduce_scatter",
        purpose="Sum over all ranks, every rank keeps one part: what FSDP does with gradients.",
        bus_factor=_sent_share,
        redop="sum",
        shares_array=True,
        in_place=(False, True),
    ),
    Collective(
        name="sendrecv",
        purpose="Every rank sends to the next and receives from the one before: pipelines.",
        bus_factor=_once,
        redop="sum",
        in_place=(False,),
    ),
)
COLLECTIVES = {collective.name: collective for collective in _ALL}


def collective_named(name: str) -> Collective:
    """The collective of that name; BadInput for an unknown one."""
    if name not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise BadInput(f"unknown collective {name!r}; known: {known}{nearest(name, tuple(COLLECTIVES))}")
    return COLLECTIVES[name]
