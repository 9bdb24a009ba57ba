"""Single matrix products: how long one takes in a format, at a size that is quick to measure."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from scalescope.worker.machine.emulation import expect_emulation
from scalescope.worker.machine.timing import clock_for

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
