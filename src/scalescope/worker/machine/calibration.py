"""Calibration: the same matrix products before and after the window show whether its speed changed."""

import statistics
from dataclasses import dataclass

import torch

from scalescope.worker.machine.matmul import DTYPES, choose_size, one_thread, product_times_s

_SIZES = {"cpu": (32, 64, 128, 256, 640), "cuda": (256, 512, 1024, 2048, 4096)}
_TOTAL_S = 0.05
_MOST_PRODUCTS = 1000


@dataclass(frozen=True, kw_only=True)
class BareProduct:
    """A matrix product that fits the device: as large as 50 ms allow, repeated to fill 50 ms."""

    device: torch.device
    dtype: torch.dtype
    size: int
    count: int

    @classmethod
    def sized_for(cls, device: torch.device, precision: str) -> "BareProduct":
        """The product in the trial's number format; finding its size warms up the device."""
        dtype = DTYPES.get(precision, torch.float32)

        def best_of(size: int, tries: int) -> float:
            return min(product_times_s(device, dtype, size, tries))

        with one_thread():  # several threads are not slower, so the size fits them too
            size, alone_s = choose_size(best_of, _SIZES[device.type], _TOTAL_S)
        count = products_within(_TOTAL_S, min(alone_s, best_of(size, 1)))
        return cls(device=device, dtype=dtype, size=size, count=count)

    def flops_per_s(self) -> float:
        """The rate of the product: an upper bound for the rate of a trial's steps."""
        times_s = product_times_s(self.device, self.dtype, self.size, self.count)
        return 2.0 * self.size**3 / statistics.median(times_s)


def products_within(total_s: float, product_s: float) -> int:
    """How many products fill the time; at least two, and not more than a median needs."""
    shortest_s = total_s / _MOST_PRODUCTS
    return max(2, round(total_s / max(product_s, shortest_s)))


def product_rates(device: torch.device) -> dict[str, float]:
    """The rate of a bare product in every number format of a GPU, as counters of a rank's record."""
    before = torch.backends.cuda.matmul.allow_tf32
    rates = {}
    try:
        for name in ("fp32", "tf32", "bf16", "fp16"):
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            rates[f"matmul_flops_per_s/{name}"] = BareProduct.sized_for(device, name).flops_per_s()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return rates
