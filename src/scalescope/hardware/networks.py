"""Networks by name: what GPUs of a node, or nodes, are connected by, each with its public source."""

import functools
from dataclasses import dataclass
from typing import Literal, cast

from scalescope.hardware.published import PublishedCurve, published_all_reduce
from scalescope.hardware.tables import table

Level = Literal["inside", "between"]


@dataclass(frozen=True, slots=True)
class NamedNetwork:
    """What one GPU, or one network card, reaches in one direction.

    `hop_s` is the latency of a hop with NCCL's protocols LL, LL128 and Simple, as NCCL itself assumes it.
    """

    name: str
    level: Level
    bytes_per_s: float
    rate_error: float  # relative standard deviation: topology, cables and other traffic are not known
    hop_s: tuple[float, float, float]
    published: str  # the system of which an all-reduce curve was published; empty where there is none
    source: str

    def published_curve(self, gpus: int, nodes: int) -> PublishedCurve | None:
        """An all-reduce on as many GPUs of as many nodes, where somebody published one."""
        sizes = (self.published, gpus, nodes)
        fitting = (
            curve for curve in published_all_reduce() if (curve.system, curve.gpus, curve.nodes) == sizes
        )
        return next(fitting, None)


@functools.cache
def networks() -> dict[str, NamedNetwork]:
    """Every network in the data file, by name."""
    return {row["name"]: _network(row) for row in table("networks.csv")}


def _network(row: dict[str, str]) -> NamedNetwork:
    return NamedNetwork(
        name=row["name"],
        level=cast(Level, row["level"]),
        bytes_per_s=float(row["gb_s"]) * 1e9,
        rate_error=float(row["rate_error"]),
        hop_s=(float(row["ll_us"]) * 1e-6, float(row["ll128_us"]) * 1e-6, float(row["simple_us"]) * 1e-6),
        published=row["published"],
        source=row["source"],
    )
