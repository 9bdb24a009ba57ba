"""Card of the `all_reduce` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Sum over all ranks, the result on every rank: what DDP does with gradients."""

    redop = "sum"
    root = -1
    shares_array = False  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (True,)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: every byte goes round a ring twice, but for the part that stays."""
        return 2 * (ranks - 1) / ranks
