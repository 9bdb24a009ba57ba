"""Published curves of real systems, each row with its source, to hold a measurement against."""

import functools
from dataclasses import dataclass

from scalescope.hardware.links import gpu_model
from scalescope.hardware.tables import table


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """All-reduce of one system: (bytes, seconds, bus bandwidth in bytes per second)."""

    system: str
    gpu: str  # the model, as in gpu_models.csv
    gpus: int
    nodes: int
    source: str
    points: tuple[tuple[int, float, float], ...]


@functools.cache
def published_all_reduce() -> tuple[PublishedCurve, ...]:
    """Every system in the data file."""
    grouped: dict[tuple[str, str, int, int, str], list[tuple[int, float, float]]] = {}
    for row in table("all_reduce_published.csv"):
        key = (row["system"], row["gpu"], int(row["gpus"]), int(row["nodes"]), row["source"])
        point = (int(row["bytes"]), float(row["time_us"]) * 1e-6, float(row["busbw_gb_s"]) * 1e9)
        grouped.setdefault(key, []).append(point)
    return tuple(
        PublishedCurve(system, gpu, gpus, nodes, source, tuple(sorted(points)))
        for (system, gpu, gpus, nodes, source), points in grouped.items()
    )


@dataclass(frozen=True, slots=True)
class Typical:
    """A bus bandwidth that large messages usually reach on a kind of GPU, in bytes per second."""

    busbw: float
    source: str


def typical_busbw(gpu_name: str, gpus: int, collective: str, size_bytes: int) -> Typical | None:
    """What is usual for large messages on one node, where no curve of the very system was published."""
    wanted = (gpu_model(gpu_name), gpus, collective)
    for row in table("typical_busbw.csv"):
        fits = (row["gpu"], int(row["gpus"]), row["collective"]) == wanted
        if fits and size_bytes >= int(row["least_bytes"]):
            return Typical(float(row["busbw_gb_s"]) * 1e9, row["source"])
    return None


def curve_for(gpu_name: str | None, gpus: int, nodes: int = 1) -> PublishedCurve | None:
    """The system with as many GPUs of the same model on as many nodes, if somebody published one."""
    model = gpu_model(gpu_name)
    if model is None:
        return None
    return next(
        (
            curve
            for curve in published_all_reduce()
            if (curve.gpu, curve.gpus, curve.nodes) == (model, gpus, nodes)
        ),
        None,
    )


def published_latency_s() -> float:
    """The longest time of a smallest all-reduce among the published systems."""
    return max(curve.points[0][1] for curve in published_all_reduce())
