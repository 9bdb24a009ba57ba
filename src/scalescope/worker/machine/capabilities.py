"""What torch, its libraries and the GPU of this machine can do."""

import gc
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.experiment.machine import Precisions, PrecisionSupport

# ---- Makes the libraries below torch allocate what they need on first use, before anything is measured


_WIDTH = 256  # wide enough for all threads of a CPU


def use_libraries(device: torch.device) -> None:
    """Run a small layer forward and backward: cuBLAS allocates workspaces, CPU threads get their stacks.

    On a GPU, backward runs on a separate thread with a separate workspace.
    """
    layer = nn.Linear(_WIDTH, _WIDTH, device=device)
    square = torch.ones(_WIDTH, _WIDTH, device=device)
    layer(square @ square).sum().backward()  # a layer with bias and a bare product use different libraries
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    del layer, square
    gc.collect()


# ---- What a GPU's sensors show; torch reads them where NVML's Python package is installed


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


# ---- Capabilities: the number formats that the processor and the GPUs support, reported and measured


WITHOUT = "SCALESCOPE_PROBE_WITHOUT"  # for tests: formats to treat as not native, separated by commas
_FORMATS = ("tf32", "bf16", "fp16", "fp8")
_CPU_FORMATS = ("bf16", "fp16")
# Where Linux lists a processor's instruction sets, and which of them compute products in a format natively.
_INSTRUCTIONS: Mapping[str, tuple[str, Mapping[str, frozenset[str]]]] = {
    "x86_64": (
        "flags",
        {
            "bf16": frozenset({"avx512_bf16", "amx_bf16"}),
            "fp16": frozenset({"avx512_fp16", "amx_fp16"}),
        },
    ),
    "aarch64": (
        "Features",
        {"bf16": frozenset({"bf16", "svebf16"}), "fp16": frozenset({"asimdhp"})},
    ),
}
# The first NVIDIA GPUs whose matrix units compute in a format.
_FIRST_CAPABILITY = {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
_SIZES = (16, 32, 64, 128, 256)
_LONGEST_PRODUCT_S = 0.01  # with all smaller ones, some tens of milliseconds per format
_TRIES_FP32 = 3


def cpu_precisions() -> Precisions:
    """Which formats the processor supports natively, and how long a product takes relative to fp32."""
    off = switched_off(os.environ)
    return tuple(
        PrecisionSupport(name=name, native=False)
        if name in off
        else PrecisionSupport(name=name, native=cpu_native(name), slowdown=_slowdown(name))
        for name in _CPU_FORMATS
    )


def gpu_precisions(capability: tuple[int, int] | None) -> Precisions:
    """Which formats a GPU of that compute capability supports natively; empty if it is unknown."""
    if capability is None:
        return ()
    off = switched_off(os.environ)
    return tuple(
        PrecisionSupport(name=name, native=capability >= _FIRST_CAPABILITY[name] and name not in off)
        for name in _FORMATS
    )


def switched_off(environment: Mapping[str, str]) -> frozenset[str]:
    """The formats that a test switches off."""
    names = frozenset(name.strip() for name in environment.get(WITHOUT, "").split(",") if name.strip())
    if unknown := names - set(_FORMATS):
        raise BadInput(f"{WITHOUT}: {', '.join(sorted(unknown))} is not one of {', '.join(_FORMATS)}")
    return names


def cpu_native(
    precision: str, architecture: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")
) -> bool | None:
    """Whether the processor has instructions for a format; None if the system does not report it."""
    heading, wanted = _INSTRUCTIONS.get(architecture or platform.machine(), ("", {}))
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    listed = next((line for line in lines if heading and line.partition(":")[0].strip() == heading), None)
    if listed is None:
        return None
    return not wanted[precision].isdisjoint(listed.partition(":")[2].split())


def core_flops_per_s() -> float | None:
    """The rate of a matrix product in fp32 on one core, now: the best of a few; None if torch fails at it."""
    import torch

    from scalescope.worker.machine.rates import choose_size, one_thread, product_times_s

    def best_of(size: int, tries: int) -> float:
        return min(product_times_s(torch.device("cpu"), torch.float32, size, tries))

    try:
        with one_thread():
            size, seconds = choose_size(best_of, _SIZES, _LONGEST_PRODUCT_S)
            return 2.0 * size**3 / seconds
    except RuntimeError:
        return None


def _slowdown(precision: str) -> float | None:
    """Time of a matrix product divided by the time in fp32; None if torch has no such product."""
    import torch

    from scalescope.worker.machine.rates import DTYPES, choose_size, one_thread, product_times_s

    def best_of(size: int, tries: int, dtype: torch.dtype = DTYPES[precision]) -> float:
        return min(product_times_s(torch.device("cpu"), dtype, size, tries))

    try:
        with one_thread():
            size, seconds = choose_size(best_of, _SIZES, _LONGEST_PRODUCT_S)
            return seconds / best_of(size, _TRIES_FP32, torch.float32)
    except RuntimeError:
        return None
