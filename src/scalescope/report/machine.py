"""What reports say of the machine: cores, threads and where ranks ran."""

from collections.abc import Iterable, Sequence

from scalescope.analysis.configurations import Configuration
from scalescope.experiment.machine import Machine, precisions_text
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import counted, data_size
from scalescope.report.section import Section
from scalescope.results.ranks import RankPlacement

# ---- The machine: what `run` shows of it before it measures


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


# ---- Placement lines: every rank for few ranks, a line for each node beyond eight


_MOST_SINGLE_LINES = 8


def placement_lines(ranks: Sequence[RankPlacement]) -> list[str]:
    """The ranks' own lines, or a summary by node where they are too many to read."""
    if len(ranks) <= _MOST_SINGLE_LINES:
        return [rank.line for rank in ranks]
    grouped: dict[str, list[RankPlacement]] = {}
    for rank in ranks:
        grouped.setdefault(rank.host, []).append(rank)
    return [_node_line(host, members) for host, members in grouped.items()]


def _node_line(host: str, members: Sequence[RankPlacement]) -> str:
    numbers = [member.rank for member in members]
    names = sorted({member.device_name for member in members})
    return f"[Ranks {min(numbers)}-{max(numbers)}] {host}: {len(members)} ranks, name={' / '.join(names)}"


# ---- CPU threads per rank in words: what a speed on the CPU rests on, beside every baseline


def threads_of(configuration: Configuration) -> int | None:
    """The threads that torch had on each rank; as asked for where ranks did not record them. None where they
    do not matter, on a GPU, or nobody knows them."""
    trial = configuration.trial
    if trial.on_gpu:
        return None
    recorded = configuration.launches[0].threads_per_rank
    asked = None if trial.keeps_running else trial.threads_per_rank
    return asked if recorded is None else recorded


def threads_text(measured: Iterable[Configuration]) -> str:
    """`1 thread per rank`; nothing where configurations differ in it, or it is not known."""
    threads = {threads_of(configuration) for configuration in measured}
    known = threads.pop() if len(threads) == 1 else None
    return "" if known is None else f"{counted(known, 'thread')} per rank"


def threads_differ(measured: Iterable[Configuration]) -> tuple[str, ...]:
    """`1 rank had 2 threads, 2 ranks 1 each.` where speeds that are compared rest on different threads."""
    known = dict.fromkeys((config.trial.world_size, threads_of(config)) for config in measured)
    if len({threads for _, threads in known}) < 2:
        return ()
    (ranks, first), *others = known
    words = [f"{counted(ranks, 'rank')} had {_threads(first)}{_each(ranks)}"]
    words += [
        f"{counted(ranks, 'rank')} {'unknown' if threads is None else threads}{_each(ranks)}"
        for ranks, threads in others
    ]
    return (f"{', '.join(words)}.",)


def _threads(count: int | None) -> str:
    return "unknown threads" if count is None else counted(count, "thread")


def _each(ranks: int) -> str:
    return " each" if ranks > 1 else ""
