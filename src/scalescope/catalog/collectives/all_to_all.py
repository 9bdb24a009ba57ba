"""Card of the `all_to_all` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll:
    """Every rank sends a part to every other: expert parallelism."""

    redop = "none"
    root = -1
    shares_array = True  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (False,)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: the part a rank keeps does not travel."""
        return (ranks - 1) / ranks
