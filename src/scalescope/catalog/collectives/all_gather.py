"""Card of the `all_gather` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather:
    """Every rank gets the parts of all: what FSDP does with parameters."""

    redop = "none"
    root = -1
    shares_array = True  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (False, True)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: a rank receives all parts but its own."""
        return (ranks - 1) / ranks
