"""Card of the `broadcast` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """One rank's array to all: start-up and buffers."""

    redop = "none"
    root = 0
    shares_array = False  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (True,)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: every byte crosses each link once."""
        return 1.0
