"""What hardware should deliver: links, networks, peaks and published curves, each with its source."""

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Literal, cast

# ---- Reads the data files of this folder


Row = dict[str, str]


@functools.cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of a CSV file, with the names of its first line."""
    text = resources.files("scalescope.hardware").joinpath(name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


# ---- Rates of the links between GPUs and between hosts, in one direction, each with its public source


LinkKind = Literal["nvlink", "pcie", "network"]


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Bytes per second of one NVLink or one lane of PCIe: on paper, and what NCCL counts on reaching."""

    nominal: float
    reached: float
    source: str


def nvlink_rate(version: int, gpu_name: str | None) -> LinkRate | None:
    """One link of a version; chips of graphics cards have slower links of the same version."""
    chip = _model_row(gpu_name).get("chip", "")
    by_chip = {row["gpus"]: row for row in _rows("nvlink", version)}
    row = by_chip.get(chip) or by_chip.get("")
    return None if row is None else _rate(row)


def pcie_lane_rate(generation: int) -> LinkRate | None:
    """One lane."""
    rows = _rows("pcie", generation)
    return _rate(rows[0]) if rows else None


def network_share() -> tuple[float, str]:
    """What part of a network card's rate is reached, and the source."""
    rate = _rate(_rows("network", None)[0])
    return rate.reached / rate.nominal, rate.source


def gpu_model(name: str | None) -> str | None:
    """The model behind the exact name that the driver reports; None where it is not in the list.

    Names contain each other: an H100 PCIe or NVL is not an H100 SXM, and a GH200 is not an H200.
    """
    return _model_row(name).get("model")


def dense_peak(gpu: str | None, number_format: str | None) -> float | None:
    """FLOP/s of dense products by a GPU's data sheet; None where GPU or format are not in the list."""
    model = gpu_model(gpu)
    rows = (row for row in table("peaks.csv") if (row["model"], row["format"]) == (model, number_format))
    return next((float(row["tflop_s"]) * 1e12 for row in rows), None)


def _model_row(name: str | None) -> dict[str, str]:
    return next((row for row in table("gpu_models.csv") if row["name"] == name), {})


def _rows(kind: LinkKind, generation: int | None) -> list[dict[str, str]]:
    wanted = "" if generation is None else str(generation)
    return [row for row in table("links.csv") if (row["kind"], row["generation"]) == (kind, wanted)]


def _rate(row: dict[str, str]) -> LinkRate:
    return LinkRate(float(row["gb_s"]) * 1e9, float(row["reached_gb_s"]) * 1e9, row["source"])


# ---- Published curves of real systems, each row with its source, to hold a measurement against


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


# ---- Networks by name: what GPUs of a node, or nodes, are connected by, each with its public source


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
    published: str  # the system with a published all-reduce curve; empty where there is none
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
