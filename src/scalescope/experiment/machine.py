"""The machine that a request is planned for: its nodes, and what stands in for hardware that it lacks."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.experiment.trial import Trial

# ---- What a machine can do, as the probe found it: the facts that resolve `auto`


# Above this, a product in a shorter format cannot come from units made for it: those are about as fast as
# fp32's or faster, and what torch does without them is tens of times slower. In between lies what a busy
# machine or a matrix too small to matter adds to a measurement.
_MUCH_SLOWER = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSupport:
    """How a processor or a GPU computes in one number format; None is unknown."""

    name: str
    native: bool | None = None  # whether it has instructions for products in that format
    slowdown: float | None = None  # time of a matrix product divided by that in fp32

    @property
    def emulated(self) -> bool:
        """Whether the format can only cost time here: no instructions for it, or none that torch uses."""
        return self.native is False or (self.slowdown is not None and self.slowdown > _MUCH_SLOWER)


Precisions = tuple[PrecisionSupport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that torch can use."""

    index: int
    name: str
    memory_bytes: int
    uuid: str
    pci_bus: str | None = None  # 0000:1b:00.0
    compute_capability: tuple[int, int] | None = None
    precisions: Precisions = ()

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Gpu":
        """The GPU a probe wrote down."""
        facts = _known_facts(cls, record)
        capability = record.get("compute_capability")
        facts["compute_capability"] = None if capability is None else tuple(capability)
        return cls(**facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and torch of one host."""

    host: str
    system: str
    architecture: str
    cpu_model: str
    cores: int
    memory_bytes: int | None
    python_version: str
    torch_version: str
    cuda_version: str | None
    nccl_version: str | None
    driver_version: str | None
    backends: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None
    ranks_per_node: int | None = (
        None  # where several nodes work together: `cores` are one's, `gpus` all nodes'
    )
    precisions: Precisions = ()  # of the processor; each GPU has its own
    # A matrix product in fp32 on one core when it was probed, other load included; None is unknown.
    core_flops_per_s: float | None = None

    def support_of(self, precision: str, device: str) -> PrecisionSupport:
        """How `device` (cpu or cuda) computes in a format; of several GPUs, the worst."""
        sources = [gpu.precisions for gpu in self.gpus] if device == "cuda" else [self.precisions]
        return worst_support(precision, sources)

    def ranks_on_a_host(self, ranks: int) -> int:
        """How many of these ranks share a host's cores."""
        return ranks if self.ranks_per_node is None else min(ranks, self.ranks_per_node)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Machine":
        """The machine a probe wrote down."""
        facts = _known_facts(cls, record)
        facts["gpus"] = tuple(Gpu.from_json(gpu) for gpu in record["gpus"])
        facts["backends"] = tuple(record["backends"])
        return cls(**facts)


def worst_support(precision: str, sources: Iterable[Precisions]) -> PrecisionSupport:
    """What all of `sources` together can do in a format: ranks go at the pace of the slowest."""
    known = [support for precisions in sources for support in precisions if support.name == precision]
    natives = {support.native for support in known}
    slowdowns = [support.slowdown for support in known if support.slowdown is not None]
    native = next((value for value in (False, None, True) if value in natives), None)
    return PrecisionSupport(name=precision, native=native, slowdown=max(slowdowns, default=None))


def _known_facts(cls: type, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass in a record, which may have others."""
    names = {field.name for field in dataclasses.fields(cls)}
    facts = {key: value for key, value in record.items() if key in names}
    facts["precisions"] = tuple(
        PrecisionSupport(name=support["name"], native=support.get("native"), slowdown=support.get("slowdown"))
        for support in record.get("precisions", ())
    )
    return facts


# ---- Number formats that a machine emulates: which trials use them, and what that costs


# The settings that say in which format matrix products are computed. A communication hook is not among them:
# casts and sums cost little in any format.
_FORMAT_SETTINGS = ("precision", "fsdp_param_dtype")
_DEVICES = {"cpu": "this processor", "cuda": "this GPU"}


def emulated_in(trial: Trial, machine: Machine) -> tuple[PrecisionSupport, ...]:
    """The formats of a trial that its device emulates."""
    names = dict.fromkeys(str(trial.settings[name]) for name in _FORMAT_SETTINGS if name in trial.settings)
    supports = (machine.support_of(name, trial.device) for name in names)
    return tuple(support for support in supports if support.emulated)


def emulation_text(support: PrecisionSupport, device: str) -> str:
    """That a format is emulated, and what a matrix product in it costs where that was measured."""
    if support.name == "tf32":  # a mode of the matrix units: without them, torch ignores it
        return f"tf32 is not available on {_DEVICES[device]}: matrix products are computed in fp32"
    text = f"{support.name} is emulated on {_DEVICES[device]}"
    if support.slowdown is None:
        return f"{text}, which may take many times as long as fp32"
    return f"{text}: a matrix product takes about {_times(support.slowdown)} as long as in fp32"


def emulation_notes(trials: Iterable[Trial], machine: Machine) -> tuple[str, ...]:
    """One sentence for every format that the trials use and their device emulates."""
    texts = dict.fromkeys(
        emulation_text(support, trial.device) for trial in trials for support in emulated_in(trial, machine)
    )
    return tuple(f"{text}." for text in texts)


def precisions_text(precisions: Precisions) -> str:
    """`bf16 native (0.42 times as long as fp32), fp16 emulated`; unknown where nothing was measured."""
    return ", ".join(map(_support_text, precisions)) or "unknown"


def _support_text(support: PrecisionSupport) -> str:
    state = "emulated" if support.emulated else "native" if support.native else "unknown"
    measured = "" if support.slowdown is None else f" ({_times(support.slowdown)} as long as fp32)"
    return f"{support.name} {state}{measured}"


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.2g} times"


# ---- Several machines that work together: what they are as one, and in what they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDifference:
    """Something that is not the same on all hosts, with the hosts that have each value."""

    name: str
    hosts_by_value: dict[str, tuple[str, ...]]

    @property
    def values_text(self) -> str:
        """`64 on n1, n2; 32 on n3`."""
        return "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in self.hosts_by_value.items())

    @property
    def text(self) -> str:
        """`cores: 64 on n1, n2; 32 on n3`."""
        return f"{self.name}: {self.values_text}"


def combined_machine(nodes: Mapping[str, Machine], ranks: Mapping[str, int]) -> Machine:
    """The machine that trials are planned for: the cores and ranks of the most crowded node, all nodes' GPUs.

    All ranks get as much as one there can have: they go at the pace of the slowest.
    """
    first, *others = nodes.values()
    if not others:
        return first
    crowded = min(nodes, key=lambda name: nodes[name].cores / ranks[name])
    return dataclasses.replace(
        first,
        cores=nodes[crowded].cores,
        gpus=tuple(_different_gpus(nodes)),
        ranks_per_node=ranks[crowded],
        precisions=_precisions(nodes),
    )


def _precisions(nodes: Mapping[str, Machine]) -> Precisions:
    """What all processors can do: of each format, the worst of them."""
    sources = [machine.precisions for machine in nodes.values()]
    names = dict.fromkeys(support.name for precisions in sources for support in precisions)
    return tuple(worst_support(name, sources) for name in names)


def _different_gpus(nodes: Mapping[str, Machine]) -> list[Gpu]:
    """All GPUs, each once: two containers that call themselves nodes may have the same one."""
    gpus = {
        (gpu.uuid if "-" in gpu.uuid else (name, gpu.uuid)): gpu  # old versions of torch tell no uuid
        for name, node in nodes.items()
        for gpu in node.gpus
    }
    return list(gpus.values())


def differences(nodes: Mapping[str, Machine]) -> list[NodeDifference]:
    """In what nodes differ that should be alike."""
    return unlike(_facts(nodes))


def differing_nodes(nodes: Mapping[str, Machine]) -> set[str]:
    """The nodes that differ from the most in something; all where there is no most."""
    differing: set[str] = set()
    for facts in _facts(nodes).values():
        groups = sorted(_by_fact(facts).values(), key=len)
        if len(groups) > 1:
            most = groups[-1] if len(groups[-1]) > len(groups[-2]) else []
            differing |= set(facts) - set(most)
    return differing


def _facts(nodes: Mapping[str, Machine]) -> dict[str, dict[str, str]]:
    return {
        "torch": {host: node.torch_version for host, node in nodes.items()},
        "GPUs": {host: gpu_names(node) for host, node in nodes.items()},
        "cores": {host: str(node.cores) for host, node in nodes.items()},
        "processor": {host: node.cpu_model for host, node in nodes.items()},
        "driver": {host: node.driver_version or "none" for host, node in nodes.items()},
        "NCCL": {host: node.nccl_version or "none" for host, node in nodes.items()},
    }


def unlike(facts_by_name: Mapping[str, Mapping[str, str]]) -> list[NodeDifference]:
    """What is not the same on all hosts; `facts_by_name` has the value of every host for each name."""
    differing = []
    for name, facts in facts_by_name.items():
        groups = _by_fact(facts)
        if len(groups) > 1:
            hosts_by_value = {value: tuple(hosts) for value, hosts in groups.items()}
            differing.append(NodeDifference(name=name, hosts_by_value=hosts_by_value))
    return differing


def _by_fact(facts: Mapping[str, str]) -> dict[str, list[str]]:
    """The hosts that have the same value."""
    hosts_by_value: dict[str, list[str]] = {}
    for host, fact in facts.items():
        hosts_by_value.setdefault(fact, []).append(host)
    return hosts_by_value


def gpu_names(machine: Machine) -> str:
    """`8 x NVIDIA H100`, or none."""
    names = [gpu.name for gpu in machine.gpus]
    return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
