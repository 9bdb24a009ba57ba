"""Activity: what a rank's host did during the timed steps of a launch, beside computing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope.results.result import RankRecord

_HOST = "host/"
HOST_PARTS = ("input", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActivity:
    """One rank, in seconds per step unless said otherwise; None is unknown."""

    rank: int
    host_s: Mapping[str, float] = field(default_factory=dict)  # the host's time by part of the step


def activity_of(record: RankRecord) -> RankActivity:
    """What the record of a timed launch holds."""
    return RankActivity(
        rank=record.rank,
        host_s={
            part: float(value)
            for part in HOST_PARTS
            if isinstance(value := record.counters.get(f"{_HOST}{part}_s"), int | float)
        },
    )
