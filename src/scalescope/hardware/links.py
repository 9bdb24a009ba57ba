"""Rates of the links between GPUs and between hosts, in one direction, each with its public source."""

from dataclasses import dataclass
from typing import Literal

from scalescope.hardware.tables import table

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
