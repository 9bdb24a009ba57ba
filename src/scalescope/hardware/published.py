"""Published curves of real systems, each row with its source, to hold a measurement against."""

import csv
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """All-reduce of one system: (bytes, seconds, bus bandwidth in bytes per second)."""

    system: str
    gpu: str
    gpus: int
    nodes: int
    source: str
    points: tuple[tuple[int, float, float], ...]


@functools.cache
def published_all_reduce() -> tuple[PublishedCurve, ...]:
    """Every system in the data file."""
    grouped: dict[tuple[str, int, int, str], list[tuple[int, float, float]]] = {}
    for row in _rows("all_reduce_published.csv"):
        key = (row["system"], int(row["gpus"]), int(row["nodes"]), row["source"])
        point = (int(row["bytes"]), float(row["time_us"]) * 1e-6, float(row["busbw_gb_s"]) * 1e9)
        grouped.setdefault(key, []).append(point)
    return tuple(
        PublishedCurve(system, _gpu_in(system), gpus, nodes, source, tuple(sorted(points)))
        for (system, gpus, nodes, source), points in grouped.items()
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = resources.files("scalescope.hardware").joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


@dataclass(frozen=True, slots=True)
class Typical:
    """A bus bandwidth that large messages usually reach on a kind of GPU, in bytes per second."""

    busbw: float
    source: str


def typical_busbw(gpu_name: str, gpus: int, collective: str, size_bytes: int) -> Typical | None:
    """What is usual for large messages, where no curve of the very system was published."""
    for row in _rows("typical_busbw.csv"):
        fits = row["gpu"] in gpu_name and int(row["gpus"]) == gpus and row["collective"] == collective
        if fits and size_bytes >= int(row["least_bytes"]):
            return Typical(float(row["busbw_gb_s"]) * 1e9, row["source"])
    return None


def _gpu_in(system: str) -> str:
    return next((name for name in ("H200", "H100", "A100", "V100") if name in system), "unknown")


def curve_for(gpu_name: str, gpus: int, nodes: int = 1) -> PublishedCurve | None:
    """The system with as many of the same GPUs on as many nodes, if somebody published one."""
    return next(
        (
            curve
            for curve in published_all_reduce()
            if curve.gpu in gpu_name and curve.gpus == gpus and curve.nodes == nodes
        ),
        None,
    )
