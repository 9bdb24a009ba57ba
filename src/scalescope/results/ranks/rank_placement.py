"""RankPlacement: where a rank runs, as those who watch a launch are told."""

from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The host and device of a rank, and the line in which the rank describes them."""

    rank: int
    host: str
    device_name: str
    line: str

    @classmethod
    def from_record(cls, rank: int, raw: Mapping[str, object]) -> "RankPlacement":
        """From what a rank wrote; what is missing is unknown."""
        return cls(
            rank=rank,
            host=str(raw.get("host", UNKNOWN)),
            device_name=str(raw.get("device_name", UNKNOWN)),
            line=str(raw.get("placement", UNKNOWN)),
        )
