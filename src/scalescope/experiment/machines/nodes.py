"""Several machines that work together: what they are as one, and in what they differ."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from scalescope.experiment.machine import Gpu, Machine, Precisions, worst_support


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
