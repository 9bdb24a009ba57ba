"""Calibration: a fixed matrix product before and after the window shows whether the machine changed."""

import statistics

import torch

from scalescope.worker.timing import clock_for

_SIZES = {"cpu": 640, "cuda": 4096}
_REPEATS = 9
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_flops_per_s(device: torch.device, precision: str) -> float:
    """Rate of a bare matrix product in the trial's own format: the ceiling its steps can be held against."""
    size = _SIZES[device.type]
    dtype = _DTYPES.get(precision, torch.float32)
    left = torch.ones(size, size, device=device, dtype=dtype).uniform_()
    right = torch.ones(size, size, device=device, dtype=dtype).uniform_()
    out = left @ right
    clock = clock_for(device, _REPEATS)
    clock.start()
    for _ in range(_REPEATS):
        torch.matmul(left, right, out=out)
        clock.tick()
    clock.finish()
    return 2.0 * size**3 / statistics.median(clock.step_times_s())
