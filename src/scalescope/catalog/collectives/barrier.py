"""Card of the `barrier` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """All ranks wait for each other; nothing is sent."""

    redop = "none"
    root = -1
    shares_array = False  # whether the size counts the whole array, of which a rank holds a part
    has_data = False
    in_place = (False,)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: there are no bytes."""
        return 0.0
