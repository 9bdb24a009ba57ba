"""How fast this machine is: matrix products, and the times that other measurements are scaled by."""

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from scalescope import clocks

# ---- The warning of torch about an emulated format; the run has its own note about it


# oneDNN refuses a product in a format that the processor lacks; torch warns and computes it without oneDNN.
_WARNING = r"mkldnn_\w+ failed, switching to (?:BLAS gemm|baddbmm)"


def expect_emulation() -> None:
    """Ignore that warning in this process from now on: every product would repeat it."""
    warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)


# ---- The clock of a measured window: device events on a GPU, a monotonic clock on the CPU


class Clock(Protocol):
    """Marks the beginning of a window and the end of each of its steps."""

    def start(self) -> None: ...

    def tick(self) -> int:
        """Mark the end of a step; returns how many steps the device has finished."""
        ...

    @property
    def record(self) -> Callable[[int], object]:
        """The shortest way to mark the end of a step, given `clocks.perf_counter_ns()`."""
        ...

    def finished(self) -> int:
        """How many of the marked steps the device has done by now."""
        ...

    def finish(self) -> None:
        """Wait until all marked steps are done."""
        ...

    def step_times_s(self) -> list[float]: ...


class CpuClock:
    """Host time at every boundary of a step."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self.record = self._ticks.append

    def start(self) -> None:
        self.record(clocks.perf_counter_ns())

    def tick(self) -> int:
        self.record(clocks.perf_counter_ns())
        return len(self._ticks) - 1

    def finished(self) -> int:
        return len(self._ticks) - 1

    def finish(self) -> None:
        pass

    def step_times_s(self) -> list[float]:
        return [(end - begin) / 1e9 for begin, end in pairwise(self._ticks)]


class CudaClock:
    """A device event at every boundary of a step, read after the window."""

    def __init__(self, steps: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        self._count = 0
        self._finished = 0

    def start(self) -> None:
        for event in self._events:  # the driver makes an event when it is first recorded
            event.record()
        torch.cuda.synchronize()
        self._events[0].record()

    def tick(self) -> int:
        self.record(0)
        return self.finished()

    def record(self, now_ns: int) -> None:
        self._count += 1
        self._events[self._count].record()

    def finished(self) -> int:
        while self._finished < self._count and self._events[self._finished + 1].query():
            self._finished += 1
        return self._finished

    def finish(self) -> None:
        self._events[self._count].synchronize()

    def step_times_s(self) -> list[float]:
        marks = self._events[: self._count + 1]
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(marks)]


def clock_for(device: torch.device, steps: int) -> Clock:
    """The clock that fits a device."""
    return CudaClock(steps) if device.type == "cuda" else CpuClock()


# ---- Single matrix products: how long one takes in a format, at a size that is quick to measure


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # all other precisions use fp32
_TRIES = 3  # the first one loads the kernel, and another process may delay one of the others
_STEADY_S = 0.005  # anything longer is hardly affected by either, and is measured once


def choose_size(
    best_of: Callable[[int, int], float], sizes: Sequence[int], longest_s: float
) -> tuple[int, float]:
    """The largest of `sizes` whose product takes at most `longest_s`, and the time of one product.

    `best_of` (size, tries) measures. The time grows at most with the third power of the size, so a larger
    size is tried only if that fits: on any device, only the smallest size can take longer than `longest_s`.
    """
    size = sizes[0]
    seconds = best_of(size, _TRIES)
    for larger in sizes[1:]:
        expected_s = seconds * (larger / size) ** 3
        if expected_s > longest_s:
            break
        size, seconds = larger, best_of(larger, _TRIES if expected_s < _STEADY_S else 1)
    return size, seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: on a busy machine, several threads would wait for each other.

    It also starts no threads, which would stay on cores that a rank may not use later.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def product_times_s(device: torch.device, dtype: torch.dtype, size: int, count: int) -> list[float]:
    """Time of each of `count` products; a GPU is synchronised before the first and after the last."""
    expect_emulation()
    # A separate generator: how many numbers are drawn depends on the size, and must not affect the model.
    numbers = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.empty(size, size, device=device, dtype=dtype).uniform_(generator=numbers) for _ in range(2)
    )
    out = torch.empty_like(left)
    clock = clock_for(device, count)
    clock.start()
    for _ in range(count):
        torch.matmul(left, right, out=out)
        clock.tick()
    clock.finish()
    return clock.step_times_s()


# ---- Calibration: the same matrix products before and after the window show whether its speed changed


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
