"""Card of the `reduce_scatter` collective."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter:
    """Sum over all ranks, every rank keeps one part: what FSDP does with gradients."""

    redop = "sum"
    root = -1
    shares_array = True  # whether the size counts the whole array, of which a rank holds a part
    has_data = True
    in_place = (False, True)  # the ways torch offers: in place, out of place

    @staticmethod
    def bus_factor(ranks: int) -> float:
        """Bus over algorithm bandwidth: a rank sends all parts but its own."""
        return (ranks - 1) / ranks
