"""Which matrix products are timed with padded shapes, and what is stored of that."""

import pytest
import torch

from scalescope.results.traces.products import PADDED_PRODUCTS, Factor, ProductTime
from scalescope.worker.trace import padded_products
from scalescope.worker.trace.padded_products import odd_extents, store_padded_products
from scalescope.worker.training.measurements import Measurements

HERE = torch.device("cpu")
Shapes = tuple[tuple[int, ...], ...]


def product(*shapes: tuple[int, ...], number_format: str = "bf16", transposed: bool = False) -> ProductTime:
    """Two matrices in the order of their rows; the second may be transposed."""
    left, right = shapes
    strides = (1, right[-2]) if transposed else (right[-1], 1)
    return ProductTime(
        name="aten::mm",
        factors=(Factor(left, (left[-1], 1)), Factor(right, strides)),
        number_format=number_format,
        per_step=2.0,
        gpu_s=0.01,
    )


@pytest.mark.parametrize(
    ("shapes", "number_format", "odd"),
    [
        (((4096, 768), (768, 50257)), "bf16", [50257]),
        (((4099, 768), (768, 50257)), "fp16", [4099, 50257]),
        (((4096, 768), (768, 50304)), "bf16", []),
        (((4096, 772), (772, 50258)), "fp32", [50258]),  # rows of 4
        (((4096, 10), (10, 64)), "bf16", []),  # too small to matter
        (((13, 101, 64), (13, 64, 128)), "bf16", [101]),  # how many matrices there are does not matter
        (((4099, 768), (768, 50257)), "fp8", []),
    ],
)
def test_extents_that_do_not_fill_rows_are_odd(shapes: Shapes, number_format: str, odd: list[int]) -> None:
    assert odd_extents(product(*shapes, number_format=number_format)) == odd


class Timed:
    """In place of a GPU: remembers which factors were timed; padded ones take half as long."""

    def __init__(self, too_large: int = 1 << 20) -> None:
        self.factors: list[tuple[Factor, ...]] = []
        self._too_large = too_large

    def __call__(self, product: ProductTime, factors: tuple[Factor, ...], device: torch.device) -> float:
        if factors[0].shape[0] >= self._too_large:
            raise torch.cuda.OutOfMemoryError
        self.factors.append(factors)
        return 2e-4 if factors == product.factors else 1e-4


def stored(monkeypatch: pytest.MonkeyPatch, timed: Timed, *products: ProductTime) -> list[dict[str, object]]:
    monkeypatch.setattr(padded_products, "_timed_s", timed)
    measurements = Measurements()
    store_padded_products(measurements, products, HERE)
    return [dict(row) for row in measurements.tables[PADDED_PRODUCTS]]


def test_odd_products_are_timed_as_they_are_and_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed()
    even, odd = product((128, 768), (768, 256)), product((130, 768), (768, 50257), transposed=True)
    (row,) = stored(monkeypatch, timed, even, odd)
    assert row == {
        "operation": "aten::mm",
        "shapes": "[130,768] [768,50257]",
        "number_format": "bf16",
        "odd": "130, 50257",
        "per_step": 2.0,
        "step_s": 0.01,
        "time_s": 2e-4,
        "padded_s": 1e-4,
    }
    as_it_is, padded = timed.factors
    assert as_it_is == odd.factors
    assert [factor.shape for factor in padded] == [(192, 768), (768, 50304)]
    assert padded[1].strides == (1, 768)  # still transposed


def test_what_does_not_fit_is_left_out_and_few_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    products = [product((rows, 768), (768, 768)) for rows in (999, 101, 102, 103, 105, 106, 107)]
    rows = stored(monkeypatch, Timed(too_large=999), *products)
    assert [row["odd"] for row in rows] == ["101", "102", "103", "105", "106"]  # six were tried


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_laid_out_as_they_were(transposed: bool) -> None:
    factor = product((4, 5), (5, 7), transposed=transposed).factors[1]
    made = padded_products._made(factor, "fp32", HERE)
    assert (tuple(made.shape), made.stride()) == (factor.shape, factor.strides)
