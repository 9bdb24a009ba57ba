"""Published curves of real systems, each row with its source, to hold a measurement against."""

import csv
import functools
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
    text = (
        resources.files("scalescope.hardware")
        .joinpath("all_reduce_published.csv")
        .read_text(encoding="utf-8")
    )
    grouped: dict[tuple[str, int, int, str], list[tuple[int, float, float]]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = (row["system"], int(row["gpus"]), int(row["nodes"]), row["source"])
        point = (int(row["bytes"]), float(row["time_us"]) * 1e-6, float(row["busbw_gb_s"]) * 1e9)
        grouped.setdefault(key, []).append(point)
    return tuple(
        PublishedCurve(system, _gpu_in(system), gpus, nodes, source, tuple(sorted(points)))
        for (system, gpus, nodes, source), points in grouped.items()
    )


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
