"""Card of the `single` strategy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One rank, no wrapper, no process group: the plain baseline."""

    least_ranks = 1
    most_ranks = 1
