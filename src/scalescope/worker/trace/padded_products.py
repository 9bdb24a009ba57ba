"""Matrix products whose shapes do not fill rows of matrix units, timed as they are and with padded shapes."""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from scalescope.results.traces.products import PADDED_PRODUCTS, Factor, ProductTime
from scalescope.worker.training.measurements import Measurements

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
_ROW = {"bf16": 8, "fp16": 8, "fp32": 4, "tf32": 4}  # elements of 16 bytes, or of 32 with an exponent of 8
_PADDED = 64
_MOST_TIMED = 6
_REPEATS = 7


def store_padded_products(
    measurements: Measurements, products: Sequence[ProductTime], device: torch.device
) -> None:
    """Time the longest products that have an odd extent; what does not fit into memory is left out."""
    rows: list[dict[str, float | int | str | None]] = []
    for product in [each for each in products if odd_extents(each)][:_MOST_TIMED]:
        try:
            time_s = _timed_s(product, product.factors, device)
            padded_s = _timed_s(product, tuple(map(_padded, product.factors)), device)
        except torch.cuda.OutOfMemoryError:
            continue
        rows.append(
            {
                "operation": product.name,
                "shapes": " ".join(str(list(factor.shape)).replace(" ", "") for factor in product.factors),
                "number_format": product.number_format,
                "odd": ", ".join(map(str, odd_extents(product))),
                "per_step": product.per_step,
                "step_s": product.gpu_s,
                "time_s": time_s,
                "padded_s": padded_s,
            }
        )
    measurements.tables[PADDED_PRODUCTS] = rows


def odd_extents(product: ProductTime) -> list[int]:
    """Extents of its matrices that are not a multiple of what the units read at once."""
    row = _ROW.get(product.number_format)
    if row is None:
        return []
    return sorted({n for factor in product.factors for n in factor.shape[-2:] if n % row and n > _PADDED})


def _padded(factor: Factor) -> Factor:
    """The same matrices with extents of whole rows, laid out in the same order."""
    shape = (*factor.shape[:-2], *(-(-n // _PADDED) * _PADDED for n in factor.shape[-2:]))
    if factor.strides is None or not _is_transposed(factor):
        return Factor(shape, None)
    return Factor(shape, (*(0 for _ in shape[:-2]), 1, shape[-2]))


def _is_transposed(factor: Factor) -> bool:
    strides = factor.strides
    return strides is not None and len(strides) >= 2 and strides[-2] == 1 and strides[-1] != 1


def _timed_s(product: ProductTime, factors: Sequence[Factor], device: torch.device) -> float:
    left, right = (_made(factor, product.number_format, device) for factor in factors)
    multiply = torch.bmm if len(factors[0].shape) == 3 else torch.mm
    times: list[float] = []
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        multiply(left, right)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times[2:])


def _made(factor: Factor, number_format: str, device: torch.device) -> Tensor:
    """Random numbers: zeros would be faster."""
    shape = list(factor.shape)
    if _is_transposed(factor):
        shape[-2:] = shape[:-3:-1]
    made = torch.randn(shape, dtype=_DTYPES[number_format], device=device)
    return made.transpose(-2, -1) if _is_transposed(factor) else made
