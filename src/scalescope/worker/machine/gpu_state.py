"""What a GPU's sensors show; torch reads them where NVML's Python package is installed."""

from collections.abc import Callable

import torch

_HZ_PER_MHZ = 1e6


def sm_clock_hz(device: torch.device) -> float | None:
    """The clock of the multiprocessors in the last sample period; None where it cannot be read."""
    clock_mhz = _read(device, torch.cuda.clock_rate)
    return None if clock_mhz is None else clock_mhz * _HZ_PER_MHZ


def temperature_c(device: torch.device) -> float | None:
    """The temperature in degrees Celsius; None where it cannot be read."""
    return _read(device, torch.cuda.temperature)


def _read(device: torch.device, sensor: Callable[[torch.device], int]) -> float | None:
    if device.type != "cuda":
        return None
    try:
        return float(sensor(device))
    except Exception:  # no package, no permission, a share of a GPU: NVML's errors are of its own types
        return None
