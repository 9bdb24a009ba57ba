"""Probe: what torch and this host can do. It may use the GPU, so it runs in a separate process."""

import dataclasses
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from scalescope.cores import usable_cores
from scalescope.inspection import cpu_model
from scalescope.worker.machine.capabilities import core_flops_per_s, cpu_precisions, gpu_precisions


def probe() -> dict[str, Any]:
    """All facts of `Machine`."""
    import torch
    import torch.distributed as dist

    gpus, problem = _find_gpus(torch)
    backends = []
    if dist.is_available():
        backends = [
            name
            for name, is_available in (
                ("gloo", dist.is_gloo_available()),
                ("nccl", bool(gpus) and dist.is_nccl_available()),
            )
            if is_available
        ]
    return {
        "host": socket.gethostname(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu_model": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "python_version": platform.python_version(),
        "torch_version": str(torch.__version__),
        "cuda_version": torch.version.cuda,
        "nccl_version": _nccl_version(torch) if gpus else None,
        "driver_version": _driver_version(),
        "backends": backends,
        "gpus": gpus,
        "gpu_problem": problem,
        "precisions": [dataclasses.asdict(support) for support in cpu_precisions()],
        "core_flops_per_s": core_flops_per_s(),
    }


def own_gpu(local_rank: int) -> dict[str, Any] | None:
    """The GPU that a rank will use; probing the others would allocate memory on each of them."""
    import torch

    if not torch.cuda.is_available():
        return None
    index = local_rank % torch.cuda.device_count()
    return _describe_gpu(torch, index)


def _describe_gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    # AMD numbers its GPUs differently; the number does not imply these formats.
    capability = None if torch.version.hip else (properties.major, properties.minor)
    return {
        "index": index,
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "uuid": str(getattr(properties, "uuid", index)),
        "pci_bus": pci_bus_of(properties),
        "compute_capability": capability,
        "precisions": [dataclasses.asdict(support) for support in gpu_precisions(capability)],
    }


def pci_bus_of(properties: Any, drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """The PCI bus of a GPU as the system writes it; torch before 2.7 does not say, but the driver does."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if all(isinstance(number, int) for number in numbers):
        domain, bus, device = numbers
        return f"{domain:04x}:{bus:02x}:{device:02x}.0"
    uuid = str(getattr(properties, "uuid", ""))
    try:
        files = {folder.name: (folder / "information").read_text() for folder in drivers.iterdir()}
    except OSError:
        return None
    return next((bus for bus, text in files.items() if uuid and f"GPU-{uuid}" in text), None)


def _find_gpus(torch: Any) -> tuple[list[dict[str, Any]], str | None]:
    """Usable GPUs, or the reason why those present cannot be used."""
    if not torch.cuda.is_available():
        return [], _why_no_gpu(torch) if gpu_hardware_present() else None
    gpus = []
    try:
        for index in range(torch.cuda.device_count()):
            torch.ones(1, device=f"cuda:{index}").add_(1).item()
            gpus.append(_describe_gpu(torch, index))
    except RuntimeError as error:
        return [], str(error).splitlines()[0]
    return gpus, None


def gpu_hardware_present() -> bool:
    """Whether the system has an NVIDIA GPU that is not hidden on purpose."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/proc/driver/nvidia/gpus").glob("*"))


def _why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "torch.cuda.is_available() returns False"


def _nccl_version(torch: Any) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return None


def _driver_version() -> str | None:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    numbers = [word for word in words if word[0].isdigit() and "." in word]
    return numbers[0] if numbers else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
