"""Card of the `sendrecv` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendrecv:
    """Every rank sends to the next and receives from the one before: pipelines."""

    redop = "sum"
    root = -1
    shares_array = False  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (False,)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: every byte crosses one link once."""
        return 1.0
