"""Rows of collectives whose every number is known."""

from scalescope.analysis.collectives import CollectiveRow


def make_row(
    size_bytes: int,
    *times_s: float,
    collective: str = "all_reduce",
    dtype: str = "float32",
    ranks: int = 2,
    in_place: bool = True,
    transfers_s: tuple[float, ...] | None = None,
    last_rank: int | None = None,
    wrong: int = 0,
) -> CollectiveRow:
    return CollectiveRow(
        collective=collective,
        dtype=dtype,
        ranks=ranks,
        in_place=in_place,
        size_bytes=size_bytes,
        times_s=times_s,
        transfers_s=times_s if transfers_s is None else transfers_s,
        last_rank=last_rank,
        wrong=wrong,
    )
