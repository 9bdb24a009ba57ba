"""The machine: what `run` shows of it before it measures."""

from collections.abc import Iterable

from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.emulation import precisions_text
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import data_size
from scalescope.report.section import Section


def machine_section(machine: Machine, ranks: int) -> Section:
    """What the ranks will run on."""
    lines = [
        f"Host       : {machine.cpu_model}, {machine.cores} cores, {_memory(machine.memory_bytes)}, "
        f"{machine.system} {machine.architecture}",
        f"torch      : {machine.torch_version}, CUDA {machine.cuda_version or 'none'}, "
        f"NCCL {machine.nccl_version or 'none'}, driver {machine.driver_version or 'none'}",
        f"Backends   : {', '.join(machine.backends) or 'none'}",
        f"GPUs       : {len(machine.gpus)}",
    ]
    lines += [f"  cuda:{gpu.index}  : {gpu.name}, {_memory(gpu.memory_bytes)}" for gpu in machine.gpus]
    lines.append(f"Ranks      : {_fit(machine, ranks)}")
    return Section(title="Machine", lines=tuple(lines))


def format_lines(machine: Machine, trials: Iterable[Trial]) -> tuple[str, ...]:
    """In which number formats the devices of trials compute natively, where trials compute at all."""
    devices = dict.fromkeys(trial.device for trial in trials if "precision" in trial.settings)
    return tuple(
        f"Number formats of the {'GPUs' if device == 'cuda' else 'CPU'}: {_formats(machine, device)}."
        for device in devices
    )


def _formats(machine: Machine, device: str) -> str:
    sources = [gpu.precisions for gpu in machine.gpus] if device == "cuda" else [machine.precisions]
    names = dict.fromkeys(support.name for precisions in sources for support in precisions)
    return precisions_text(tuple(machine.support_of(name, device) for name in names))


def _fit(machine: Machine, ranks: int) -> str:
    if machine.gpus:
        enough = "one GPU each" if ranks <= len(machine.gpus) else "more ranks than GPUs"
        return f"up to {ranks}, {enough}"
    enough = "at least one core each" if ranks <= machine.cores else "more ranks than cores"
    return f"up to {ranks} on the CPU, {enough}"


def _memory(size: int | None) -> str:
    return "unknown memory" if size is None else data_size(size)
