"""Peaks: what the data sheet of a GPU says of dense matrix products in a number format."""

from scalescope.hardware.links import gpu_model
from scalescope.hardware.tables import table


def dense_peak(gpu: str | None, number_format: str | None) -> float | None:
    """FLOP/s without sparsity; None where the GPU or the format is not in the list."""
    model = gpu_model(gpu)
    rows = (row for row in table("peaks.csv") if (row["model"], row["format"]) == (model, number_format))
    return next((float(row["tflop_s"]) * 1e12 for row in rows), None)
