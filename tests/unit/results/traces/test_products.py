"""Operations from shapes: the same as torch counts, each once, and only where they ran."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from scalescope.results.traces.products import (  # noqa: E402
    CountedProducts,
    Flops,
    Launched,
    Product,
    flops_of,
    model_flops,
    product_of,
)


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, 32))

    def forward(self, x: Any) -> Any:
        return torch.einsum("bhi,hio->bho", x, self.weight)


def linear() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), torch.randn(4, 8, 64)


def images() -> tuple[nn.Module, Any]:
    layers = (
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, dilation=2),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    )
    return nn.Sequential(*layers), torch.randn(2, 3, 16, 16, requires_grad=True)


def batched() -> tuple[nn.Module, Any]:
    return Batched(), torch.randn(8, 4, 16)


@pytest.mark.parametrize("make", [linear, images, batched])
def test_counts_are_those_of_torch(make: Callable[[], tuple[nn.Module, Any]], tmp_path: Path) -> None:
    model, x = make()
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        model(x).sum().backward()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    operations = [event for event in events if event.get("cat") == "cpu_op"]
    known = [product_of(event, event["ts"], event["ts"] + event["dur"]) for event in operations]
    products = [product for product in known if product is not None]
    launched = [
        Launched(name="gemm", time_s=1.0, thread=product.thread, launched_s=product.start_s)
        for product in products
    ]
    counted = CountedProducts(products, launched)
    assert sum(product.flops.device for product in counted) == counter.get_total_flops() > 0
    assert counted.by_format() == {"fp32": counter.get_total_flops()}


def product(
    start_s: float,
    end_s: float,
    flops: float = 8.0,
    number_format: str = "fp32",
    name: str = "aten::convolution",
) -> Product:
    return Product(
        name=name,
        thread=1,
        start_s=start_s,
        end_s=end_s,
        flops=Flops(flops, flops),
        number_format=number_format,
    )


def kernel(launched_s: float, name: str = "sgemm", thread: int = 1, time_s: float = 1.0) -> Launched:
    return Launched(name=name, time_s=time_s, thread=thread, launched_s=launched_s)


def test_a_product_inside_another_is_a_part_of_it() -> None:
    counted = CountedProducts([product(0, 10), product(2, 3)], [kernel(2.5)])
    assert [item.end_s for item in counted] == [10]


def test_of_a_matrix_product_inside_another_the_inner_one_is_computed() -> None:
    whole, part = product(0, 10, 64.0, name="aten::mm"), product(2, 3, 16.0, "fp8", name="aten::_scaled_mm")
    counted = CountedProducts([whole, part], [kernel(2.5)])
    assert counted.by_format() == {"fp8": 16.0}


def test_a_product_that_launched_nothing_did_not_run() -> None:
    counted = CountedProducts([product(0, 1), product(2, 3)], [kernel(2.5, "copy")])
    assert [item.start_s for item in counted] == [2]


def test_kernels_of_products_that_nobody_called_for_are_unlinked() -> None:
    kernels = [
        kernel(0.5),
        kernel(5),
        kernel(0.5, thread=2),
        kernel(6, "elementwise"),
        kernel(7, "nvjet_tst"),
    ]
    counted = CountedProducts([product(0, 1)], kernels)
    assert (counted.linked_s, counted.unlinked_s) == (1.0, 3.0)


def test_fp32_on_matrix_units_is_tf32() -> None:
    products = [product(0, 1), product(2, 3, 16.0), product(4, 5, 32.0, "bf16")]
    kernels = [
        kernel(0.5, "simt_sgemm"),
        kernel(2.5, "cutlass_tensorop_s1688gemm_tf32"),
        kernel(4.5, "nvjet"),
    ]
    assert CountedProducts(products, kernels).by_format() == {"fp32": 8.0, "tf32": 16.0, "bf16": 32.0}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::mm", {}),
        ("aten::mm", {"Input Dims": [[2, 3]]}),
        ("aten::add", {"Input Dims": [[2, 3], [3, 4]]}),
        ("mm", {"Input Dims": [[2, 3], [3, 4]]}),
        ("aten::convolution", {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3]]}),
        ("aten::convolution", {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3]], "Concrete Inputs": ["x("] * 9}),
    ],
)
def test_what_has_no_shapes_is_not_counted(name: str, arguments: dict[str, Any]) -> None:
    assert flops_of(name, arguments) is None


def test_attention_counts_its_scores_and_values_and_computes_scores_twice() -> None:
    heads = [2, 4, 16, 8]
    forward = flops_of("aten::_scaled_dot_product_flash_attention", {"Input Dims": [heads] * 3})
    assert forward == Flops(2.0 * 2 * 4 * 16 * 16 * 16, 2.0 * 2 * 4 * 16 * 16 * 16)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    assert flops_of(name, {"Input Dims": [heads] * 4}) == Flops(2.5 * forward.device, 2.0 * forward.device)


def test_what_a_compiled_backward_pass_has_beyond_two_forward_passes_is_computed_again() -> None:
    assert model_flops(1.0, 3.0, is_compiled=True) == 3.0
    assert model_flops(1.0, 3.0, is_compiled=False) == 4.0
    assert model_flops(1.0, 1.5, is_compiled=True) == 2.5
