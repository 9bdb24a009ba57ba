"""Network: how long a collective takes on how many ranks, with what that rests on."""

from dataclasses import dataclass
from typing import Protocol

from scalescope.analysis.prediction.setup import RankLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """The time of one collective; `error` is its relative standard deviation.

    `assumptions` says in sentences what was not measured, such as another number of ranks or another size;
    empty where it was interpolated between measured points of the same number of ranks.
    """

    time_s: float
    latency_s: float = 0.0  # the part of it that does not occupy the link
    error: float = 0.0
    assumptions: tuple[str, ...] = ()


class CollectiveTimes(Protocol):
    """Where times of collectives come from: a measured curve, nccl-tests, a named hardware profile."""

    def time_of(
        self, collective: str, size_bytes: float, ranks: int, layout: RankLayout
    ) -> CollectiveTime: ...
