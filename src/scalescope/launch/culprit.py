"""Decides which rank is to blame for a launch that failed or hung; every launcher asks here."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from scalescope.results.ranks import is_secondary_error


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """What is known of a rank that did not finish."""

    rank: int
    message: str = ""  # of its own error; empty where it left none
    is_lost: bool = False  # it never answered, or only that it waits
    progress: tuple[int, ...] = ()  # how far it got; empty where the launcher cannot see that
    at_s: float = 0.0  # when it failed


def find_culprit(failures: Iterable[RankFailure]) -> RankFailure:
    """The rank whose failure explains those of the others."""
    return min(failures, key=culprit_key)


def culprit_key(failure: RankFailure) -> tuple[bool, bool, tuple[int, ...], float]:
    """Sorts failures, the culprit first.

    An error that another rank's end explains comes last, and a rank that reported an error comes before one
    that never answered. Then the least progress decides. Times come last: clocks of several hosts differ.
    """
    return is_secondary_error(failure.message), failure.is_lost, failure.progress, failure.at_s


def find_hung_ranks(positions: Sequence[tuple[int, ...]], stopped: Collection[int]) -> list[int]:
    """The ranks that the others wait for: those stopped by a signal, else those with the least progress."""
    if stopped:
        return sorted(stopped)
    lowest = min(positions)
    return [rank for rank, position in enumerate(positions) if position == lowest]


def ranks_text(ranks: Sequence[int], world_size: int) -> str:
    """`rank 1`, `ranks 1, 2` or `all ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "all ranks" if len(ranks) == world_size else f"ranks {', '.join(map(str, ranks))}"
