"""What is known of this machine before torch is loaded: enough to refuse what can never run here."""

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalescope.cores import usable_cores
from scalescope.experiment.machine import Gpu, Machine
from scalescope.host_memory import usable_memory
from scalescope.launch.telemetry.nvml import gpu_totals

# Of NVIDIA's cards and boards, of AMD, and of any inside Windows' Linux.
_GPU_FILES = (
    "dev/nvidia*",
    "proc/driver/nvidia/gpus/*",
    "dev/nvgpu*",
    "dev/nvhost*",
    "dev/nvmap",
    "dev/kfd",
    "dev/dxg",
)


def outlook(devices: Sequence[str], root: Path = Path("/")) -> Machine | None:
    """The machine as the system shows it; None where only torch knows which device ranks would use.

    GPUs are at most those listed here: torch may be unable to use one of them.
    """
    gpus: tuple[Gpu, ...] = ()
    if set(devices) != {"cpu"} and gpus_present(root):
        gpus = visible_gpus(gpu_totals(), os.environ) or ()
        if not gpus:
            return None
    return Machine(
        host=socket.gethostname(),
        system=platform.system(),
        architecture=platform.machine(),
        cpu_model="unknown",
        cores=usable_cores(),
        memory_bytes=usable_memory(root),
        python_version=platform.python_version(),
        torch_version="unknown",
        cuda_version=None,
        nccl_version=None,
        driver_version=None,
        backends=("gloo", "nccl") if gpus else ("gloo",),
        gpus=gpus,
        gpu_problem=None,
    )


def gpus_present(root: Path = Path("/")) -> bool:
    """Whether the system shows a GPU of any make."""
    return any(any(root.glob(pattern)) for pattern in _GPU_FILES)


def visible_gpus(
    totals: Sequence[tuple[str, str, int]] | None, environment: Mapping[str, str]
) -> tuple[Gpu, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; None where that cannot be said."""
    if totals is None:
        return None
    gpus = tuple(
        Gpu(index=index, name=name, memory_bytes=size, uuid=uuid)
        for index, (uuid, name, size) in enumerate(totals)
    )
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    numbers = [part.strip() for part in chosen.split(",")]
    if not all(number.isdigit() and int(number) < len(gpus) for number in numbers):
        return None  # names of GPUs or of their parts
    # Their order may differ from NVML's: what is said of one must hold for all.
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes)
    return tuple(
        Gpu(index=index, name=largest.name, memory_bytes=largest.memory_bytes, uuid=str(index))
        for index in range(len(numbers))
    )
