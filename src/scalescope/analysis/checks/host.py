"""Whether this host is set up for training: where GPUs and network cards lie, what it lacks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalescope.experiment.machine import Machine, precisions_text
from scalescope.link_matrix import affinities_of, links_of
from scalescope.results.topology import NicSite, Topology, core_list

# ---- A host's topology in words, for `check` and wherever nodes are listed


def topology_lines(topology: Topology) -> Iterator[tuple[str, str]]:
    """(subject, text) of its NUMA nodes, GPUs and network cards."""
    if topology.numa_cores:
        yield "NUMA", numa_text(topology)
    if topology.gpus:
        yield "GPU links", gpus_text(topology)
    for nic in topology.nics:
        near = [
            gpu.index for gpu in topology.gpus if topology.nic_paths.get(f"{gpu.index}-{nic.name}") == "PIX"
        ]
        near_text = f", next to GPU {', '.join(map(str, near))}" if near else ""
        node = "" if nic.numa_node is None else f", NUMA node {nic.numa_node}"
        yield "card", f"{nic.name}: {nic_text(nic)}{node}{near_text}"


def numa_text(topology: Topology) -> str:
    """`2 (cores 0-31; 32-63), distance up to 21`."""
    if not topology.numa_cores:
        return "unknown"
    cores = "; ".join(core_list(members) for members in topology.numa_cores.values() if members)
    others = [
        distance
        for number, row in enumerate(topology.numa_distances)
        for column, distance in enumerate(row)
        if number != column
    ]
    far = f", distance up to {max(others)}" if others else ""
    return f"{len(topology.numa_cores)} (cores {cores}){far}"


def nic_text(nic: NicSite) -> str:
    """`infiniband 400 Gbit/s`: what cards are sold by."""
    rate = nic.rate_bytes_per_s
    return f"{nic.kind or 'unknown kind'} {'rate unknown' if rate is None else f'{rate * 8 / 1e9:g} Gbit/s'}"


def gpus_text(topology: Topology) -> str:
    """`8 × NVIDIA H100, NVLink 4 × 18, PCIe 5 × 16, paths NV18`."""
    if not topology.gpus:
        return "none"
    first = topology.gpus[0]
    parts = [f"{len(topology.gpus)} × {first.name or 'GPU'}"]
    if first.nvlink_version is not None and first.nvlink_count:
        parts.append(f"NVLink {first.nvlink_version} × {first.nvlink_count}")
    if first.pcie_generation is not None and first.pcie_width is not None:
        parts.append(f"PCIe {first.pcie_generation} × {first.pcie_width}")
    if topology.gpu_paths:
        parts.append(f"paths {', '.join(sorted(set(topology.gpu_paths.values())))}")
    return ", ".join(parts)


# ---- Checks of one host: what could spoil a run, each ok, warn or fail, with what to do about it


Level = Literal["ok", "warn", "fail"]
_LEAST_SHARED_MEMORY = 1 << 30
_LEAST_OPEN_FILES = 4096
_IDLE_REASONS = 0x1  # the GPU is idle, so its clocks are low
_BENIGN_REASONS = 0x1 | 0x2 | 0x10 | 0x100  # idle, clocks set by application, sync boost, display

# What each variable does, and whether it spoils a measurement.
_VARIABLES: tuple[tuple[str, str, Level, str], ...] = (
    ("NCCL_ALGO", "", "warn", "forces one algorithm; on NVSwitch machines Ring disables NVLS"),
    ("NCCL_PROTO", "", "warn", "forces one protocol at every size"),
    ("NCCL_P2P_DISABLE", "1", "warn", "GPUs exchange through host memory instead of NVLink or PCIe"),
    ("NCCL_SHM_DISABLE", "1", "warn", "ranks on one host exchange through sockets"),
    ("NCCL_IB_DISABLE", "1", "warn", "InfiniBand and RoCE are not used"),
    ("NCCL_DEBUG", "INFO", "warn", "logging slows the measurement down; use WARN"),
    ("NCCL_DEBUG", "TRACE", "warn", "logging slows the measurement down; use WARN"),
    ("NCCL_SOCKET_IFNAME", "", "ok", "network interface of NCCL's sockets"),
    ("CUDA_LAUNCH_BLOCKING", "1", "fail", "kernels run one after another: nothing overlaps"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "warn", "checks every collective, which costs time"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1", "warn", "the host waits for every collective"),
    ("OMP_NUM_THREADS", "", "ok", "CPU threads of each rank"),
    ("CUDA_VISIBLE_DEVICES", "", "ok", "GPUs that ranks can see"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `scalescope check`."""

    level: Level
    subject: str
    text: str
    advice: str = ""


def all_checks(
    machine: Machine, system: Mapping[str, Any], variables: Mapping[str, str], world_size: int
) -> tuple[Check, ...]:
    """All checks, grouped by subject."""
    return (
        *_software(machine),
        *_gpus(machine, system),
        *_topology(system),
        *_host(machine, system),
        *_precisions(machine),
        *_network(system),
        *_variables(variables),
        *_mapping(machine, world_size),
    )


def _software(machine: Machine) -> Iterator[Check]:
    cuda = machine.cuda_version or "none"
    yield Check(
        level="ok",
        subject="torch",
        text=f"{machine.torch_version}, CUDA {cuda}, NCCL {machine.nccl_version or 'none'}, "
        f"Python {machine.python_version}",
    )
    if machine.backends:
        yield Check(level="ok", subject="backends", text=", ".join(machine.backends))
    else:
        yield Check(
            level="fail",
            subject="backends",
            text="none: this torch has no distributed support",
            advice="install a torch built with distributed support",
        )


def _gpus(machine: Machine, system: Mapping[str, Any]) -> Iterator[Check]:
    if machine.gpu_problem:
        yield Check(
            level="fail",
            subject="GPU",
            text=machine.gpu_problem,
            advice="fix the driver, or install a torch build that matches it",
        )
    elif not machine.gpus:
        yield Check(level="ok", subject="GPU", text="none: runs measure the CPU")
    elif not system.get("gpus"):
        yield Check(
            level="warn",
            subject="GPU",
            text="nvidia-smi could not be read: clocks, PCIe and MIG are unknown",
            advice="nvidia-smi must work for this user",
        )
    for facts in system.get("gpus", ()):
        yield from _one_gpu(facts)
    for process in system.get("gpu_processes", ()):
        yield Check(
            level="warn",
            subject="GPU process",
            text=process,
            advice="another process shares the GPU; stop it or measure later",
        )


def _one_gpu(facts: Mapping[str, str]) -> Iterator[Check]:
    subject = f"GPU {facts.get('index', '?')}"
    yield Check(
        level="ok",
        subject=subject,
        text=f"{facts.get('name')}, {facts.get('memory.total')} MiB, driver {facts.get('driver_version')}, "
        f"SM clock {facts.get('clocks.sm')} of {facts.get('clocks.max.sm')} MHz, "
        f"{facts.get('power.limit')} W, {facts.get('temperature.gpu')} °C, "
        f"ECC {facts.get('ecc.mode.current')}, MIG {facts.get('mig.mode.current')}",
    )
    reasons = _hexadecimal(facts.get("clocks_event_reasons.active"))
    if reasons is not None and reasons & ~_BENIGN_REASONS:
        yield Check(
            level="warn",
            subject=subject,
            text=f"clocks are throttled (reasons {reasons:#x})",
            advice="check power, temperature and clock limits: nvidia-smi -q -d PERFORMANCE",
        )
    if facts.get("mig.mode.current") == "Enabled":
        yield Check(
            level="warn", subject=subject, text="MIG is on", advice="ranks see MIG slices, not whole GPUs"
        )
    width, most = facts.get("pcie.link.width.current"), facts.get("pcie.link.width.max")
    if width and most and width.isdigit() and most.isdigit() and int(width) < int(most):
        yield Check(
            level="warn",
            subject=subject,
            text=f"PCIe ×{width} of ×{most}",
            advice="reseat the card, or check the slot and the risers",
        )
    busy = reasons is None or not reasons & _IDLE_REASONS
    generation, best = facts.get("pcie.link.gen.current"), facts.get("pcie.link.gen.max")
    known = generation and best and generation.isdigit() and best.isdigit()
    if busy and known and int(generation or 0) < int(best or 0):
        yield Check(
            level="warn",
            subject=subject,
            text=f"PCIe generation {generation} of {best}",
            advice="check the firmware settings",
        )


def _hexadecimal(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _topology(system: Mapping[str, Any]) -> Iterator[Check]:
    text = system.get("link_matrix") or ""
    links = links_of(text)
    if links:
        kinds = sorted(set(links.values()))
        yield Check(
            level=_level_of(kinds), subject="links", text=_reading_of(kinds), advice=_advice_for(kinds)
        )
    for gpu, (cpus, node) in affinities_of(text).items():
        yield Check(level="ok", subject=f"GPU {gpu}", text=f"near CPUs {cpus}, NUMA node {node}")
    topology = Topology.from_json(system.get("topology"))
    for subject, line in () if topology is None else topology_lines(topology):
        yield Check(level="ok", subject=subject, text=line)


def _level_of(kinds: list[str]) -> Level:
    return "warn" if len({kind[:2] == "NV" for kind in kinds}) > 1 or "SYS" in kinds else "ok"


def _reading_of(kinds: list[str]) -> str:
    if all(kind.startswith("NV") for kind in kinds):
        return f"every pair of GPUs is joined by NVLink ({', '.join(kinds)})"
    if any(kind.startswith("NV") for kind in kinds):
        return f"some pairs have NVLink and some do not ({', '.join(kinds)})"
    return f"no NVLink: pairs are joined by {', '.join(kinds)}"


def _advice_for(kinds: list[str]) -> str:
    if "SYS" in kinds:
        return "SYS crosses CPU sockets: keep ranks that exchange most on one socket"
    return ""


def _host(machine: Machine, system: Mapping[str, Any]) -> Iterator[Check]:
    memory = "unknown" if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.0f} GiB"
    nodes = system.get("numa_nodes") or "unknown"
    yield Check(
        level="ok",
        subject="host",
        text=f"{machine.cpu_model}, {machine.cores} cores, {memory}, NUMA nodes {nodes}",
    )
    governor = system.get("governor")
    yield _judged(
        governor in (None, "performance"),
        "governor",
        f"CPU frequency governor {governor or 'unknown'}",
        "performance keeps clocks steady: cpupower frequency-set -g performance",
    )
    load = system.get("load_average")
    yield _judged(
        load is None or load <= 0.5 * machine.cores + 0.5,
        "load",
        f"load average {'unknown' if load is None else f'{load:.1f}'} on {machine.cores} cores",
        "other work runs here: results will be noisy",
    )
    yield from _limits(system)


def _precisions(machine: Machine) -> Iterator[Check]:
    """Number formats: an emulated one is not a fault of the machine, so nothing is warned of here."""
    yield Check(level="ok", subject="CPU formats", text=precisions_text(machine.precisions))
    for name, capability, precisions in dict.fromkeys(
        (gpu.name, gpu.compute_capability, gpu.precisions) for gpu in machine.gpus
    ):
        number = "unknown" if capability is None else ".".join(map(str, capability))
        text = f"{name}, compute capability {number}: {precisions_text(precisions)}"
        yield Check(level="ok", subject="GPU formats", text=text)


def _limits(system: Mapping[str, Any]) -> Iterator[Check]:
    shared = system.get("shared_memory_bytes")
    yield _judged(
        shared is None or shared >= _LEAST_SHARED_MEMORY,
        "shared memory",
        f"{'unknown' if shared is None else f'{shared >> 20} MiB'} in /dev/shm",
        "data loaders and NCCL need more: docker run --shm-size=8g or --ipc=host",
    )
    files = system.get("open_files_limit")
    yield _judged(
        files is None or files < 0 or files >= _LEAST_OPEN_FILES,
        "ulimit",
        f"{'unknown' if files is None else 'unlimited' if files < 0 else files} open files",
        f"ulimit -n {_LEAST_OPEN_FILES}",
    )
    cpus, memory = system.get("cgroup_cpus"), system.get("cgroup_memory_bytes")
    shown = [f"{cpus:g} CPUs"] if cpus is not None else []
    shown += [f"{memory / 2**30:.0f} GiB"] if memory is not None else []
    yield Check(
        level="ok", subject="container", text=f"limited to {' and '.join(shown)}" if shown else "no limits"
    )


def _judged(good: bool, subject: str, text: str, advice: str) -> Check:
    return Check(level="ok" if good else "warn", subject=subject, text=text, advice="" if good else advice)


def _network(system: Mapping[str, Any]) -> Iterator[Check]:
    shown = []
    for interface in system.get("interfaces", ()):
        speed = f" {interface['speed_mbit']} Mbit/s" if interface["speed_mbit"] else ""
        shown.append(f"{interface['name']} {interface['state']}{speed}")
    if shown:
        yield Check(level="ok", subject="network", text=", ".join(shown))
    for port in system.get("infiniband", ()):
        active = "ACTIVE" in (port["state"] or "")
        yield Check(
            level="ok" if active else "warn",
            subject="InfiniBand",
            text=f"{port['name']} {port['state']} {port['rate']}",
            advice="" if active else "the port is down: NCCL will not use it",
        )


def _variables(variables: Mapping[str, str]) -> Iterator[Check]:
    for name, bad, level, what in _VARIABLES:
        value = variables.get(name)
        if value is not None and (not bad or value.upper() == bad):
            advice = f"unset {name} unless it is intended" if level != "ok" else ""
            yield Check(level=level, subject=name, text=f"{value}: {what}", advice=advice)


def _mapping(machine: Machine, world_size: int) -> Iterator[Check]:
    if not machine.gpus:
        level: Level = "ok" if world_size <= machine.cores else "warn"
        text = f"{world_size} ranks on {machine.cores} cores"
        yield Check(
            level=level,
            subject="ranks",
            text=text,
            advice="" if level == "ok" else "ranks will compete for cores",
        )
        return
    for rank in range(min(world_size, len(machine.gpus))):
        gpu = machine.gpus[rank]
        yield Check(level="ok", subject=f"rank {rank}", text=f"cuda:{gpu.index} {gpu.name}")
    if world_size > len(machine.gpus):
        yield Check(
            level="fail",
            subject="ranks",
            text=f"{world_size} ranks on {len(machine.gpus)} GPU(s)",
            advice="use at most as many ranks as GPUs, or --oversubscribe to only test the code",
        )
