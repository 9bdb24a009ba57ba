"""The matrix product around a window: never long, and the same before and after."""

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch

from scalescope.worker.machine import rates
from scalescope.worker.machine.rates import (
    BareProduct,
    choose_size,
    expect_emulation,
    product_rates,
    product_times_s,
    products_within,
)

CPU = torch.device("cpu")
SIZES = rates._SIZES["cpu"]
LONGEST_S = rates._TOTAL_S


def device_of(flops_per_s: float, overhead_s: float = 0.0) -> tuple[Callable[[int, int], float], list[int]]:
    """What a product costs on a made-up device, and the sizes that were tried on it."""
    tried: list[int] = []

    def best_of(size: int, tries: int) -> float:
        tried.append(size)
        return overhead_s + 2.0 * size**3 / flops_per_s

    return best_of, tried


@pytest.mark.parametrize(
    ("flops_per_s", "size"),
    [
        (1e12, 640),
        (30e9, 640),  # one core
        (309e6, 128),  # bf16 on a processor without it
        (5e6, 32),
    ],
)
def test_the_size_fits_the_speed_of_the_device(flops_per_s: float, size: int) -> None:
    best_of, tried = device_of(flops_per_s)
    chosen, seconds = choose_size(best_of, SIZES, LONGEST_S)
    assert chosen == size
    assert seconds == 2.0 * size**3 / flops_per_s
    assert tried == list(SIZES[: SIZES.index(size) + 1])


def test_no_product_is_longer_than_allowed_but_the_smallest() -> None:
    for overhead_s, power in itertools.product((0.0, 20e-6, 1e-3), range(6, 15)):
        best_of, _ = device_of(10.0**power, overhead_s)
        size, seconds = choose_size(best_of, SIZES, LONGEST_S)
        assert seconds <= LONGEST_S or size == SIZES[0]


@pytest.mark.parametrize(
    ("product_s", "count"), [(0.01, 5), (0.05, 2), (0.2, 2), (1e-3, 50), (1e-9, 1000), (0.0, 1000)]
)
def test_products_are_repeated_until_the_time_is_used(product_s: float, count: int) -> None:
    assert products_within(0.05, product_s) == count


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_precision_has_a_rate(precision: str) -> None:
    product = BareProduct.sized_for(CPU, precision)
    assert product.size in SIZES
    assert product.flops_per_s() > 0.0


def test_the_product_after_the_window_is_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def times_s(device: torch.device, dtype: torch.dtype, size: int, count: int) -> list[float]:
        asked.append((size, count))
        return [0.001 * len(asked)] * count

    product = BareProduct.sized_for(CPU, "fp32")
    monkeypatch.setattr(rates, "product_times_s", times_s)
    speeds = [product.flops_per_s() for _ in range(2)]
    assert asked[0] == asked[1] == (product.size, product.count)
    assert speeds[0] == 2 * speeds[1] == pytest.approx(2.0 * product.size**3 / 0.001)


@pytest.mark.parametrize("before", [True, False])
def test_rates_of_all_formats_leave_the_setting_of_torch_as_it_was(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []

    def times_s(device: torch.device, dtype: torch.dtype, size: int, count: int) -> list[float]:
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return [0.1] * count

    monkeypatch.setattr(rates, "product_times_s", times_s)
    usual = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before
    try:
        speeds = product_rates(CPU)
        assert torch.backends.cuda.matmul.allow_tf32 is before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = usual
    assert set(speeds) == {f"matmul_flops_per_s/{name}" for name in ("fp32", "tf32", "bf16", "fp16")}
    assert all(rate == pytest.approx(2.0 * SIZES[0] ** 3 / 0.1) for rate in speeds.values())
    assert sorted(set(allowed)) == [False, True]


def test_the_models_random_numbers_do_not_depend_on_it() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    product_times_s(CPU, torch.float32, 32, 2)
    assert torch.equal(torch.rand(4), expected)


EMULATED = (
    "mkldnn_matmul failed, switching to BLAS gemm: mkldnn_matmul: mkldnn_matmul bf16 path needs a cpu with "
    "bf16 support"
)


def test_a_warning_of_emulation_does_not_stop_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.matmul

    def warning_matmul(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        warnings.warn(EMULATED, UserWarning, stacklevel=1)
        return plain(left, right, out=out)

    monkeypatch.setattr(rates.torch, "matmul", warning_matmul)
    assert len(product_times_s(CPU, torch.bfloat16, 16, 2)) == 2


@pytest.mark.parametrize("text", ["mkldnn_matmul failed", "a format is emulated"])
def test_other_warnings_are_still_given(text: str) -> None:
    expect_emulation()
    with pytest.warns(UserWarning, match=text):
        warnings.warn(text, UserWarning, stacklevel=1)
