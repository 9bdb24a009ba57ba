"""Whether the nodes of a job are alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalescope.analysis.checks.host import Check, all_checks
from scalescope.analysis.telemetry import (
    TelemetrySummary,
    network_errors,
    over_launches,
    telemetry_of_hosts,
    telemetry_summary,
)
from scalescope.experiment.machine import Machine, NodeDifference, differences, unlike
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from scalescope.results.topology import (
    LOCAL_DISTANCE,
    GpuSite,
    NicSite,
    Topology,
    core_list,
    cores_of,
    topologies_of,
)

# ---- Nodes of a run: what each is made of, what it did during launches, and where its ranks ran on it


Errors = Mapping[str, Mapping[str, int]]  # of each port: counter → growth


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node; what was not recorded is None."""

    host: str
    topology: Topology | None
    telemetry: TelemetrySummary | None  # over all launches
    errors: Errors | None  # by how much the counters of its ports grew over all launches
    interfaces: tuple[Mapping[str, Any], ...] = ()  # that are up, as inspected


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSite:
    """Where a rank ran: its cores, its GPU, the network card next to it, and the NUMA distances to them."""

    rank: int
    host: str
    cores: tuple[int, ...]
    numa_nodes: tuple[int, ...]  # of the cores
    gpu: GpuSite | None = None
    gpu_distance: int | None = None  # of the nearest of its cores
    nic: NicSite | None = None
    nic_path: str | None = None  # between GPU and card
    nic_distance: int | None = None

    @property
    def core_text(self) -> str:
        return core_list(self.cores)

    @property
    def is_far(self) -> bool:
        """Whether none of its cores is on the NUMA node of its GPU, or of its card."""
        return any(distance is not None and distance > LOCAL_DISTANCE for distance in self.distances)

    @property
    def distances(self) -> tuple[int | None, ...]:
        return self.gpu_distance, self.nic_distance


def node_facts(run: Run) -> tuple[NodeFacts, ...]:
    """Every node of a run, by what its environment and its launches recorded."""
    systems, topologies = _systems(run), topologies_of(run.environment)
    telemetry = {host: _telemetry(run, host, alone=len(systems) == 1) for host in systems}
    return tuple(
        NodeFacts(
            host=host,
            topology=topologies.get(host),
            telemetry=telemetry[host],
            errors=_errors(run, host, alone=len(systems) == 1),
            interfaces=tuple(
                interface
                for interface in system.get("interfaces") or ()
                if interface.get("state") == "up" and interface.get("name") != "lo"
            ),
        )
        for host, system in systems.items()
    )


def _systems(run: Run) -> dict[str, Mapping[str, Any]]:
    """What was inspected on every host."""
    environment = run.environment
    systems = environment.get("systems")
    if not isinstance(systems, Mapping):
        systems = {str((environment.get("machine") or {}).get("host", "unknown")): environment.get("system")}
    return {str(host): system for host, system in systems.items() if isinstance(system, Mapping)}


def _telemetry(run: Run, host: str, *, alone: bool) -> TelemetrySummary | None:
    parts = [part for result in run.of_status("ok") for part in _parts(result, host, alone)]
    return over_launches([telemetry_summary(part) for part in parts]) if parts else None


def _parts(result: Result, host: str, alone: bool) -> Iterable[Mapping[str, Any]]:
    """What was sampled on a host in a launch."""
    for name, part in telemetry_of_hosts(result.telemetry).items():
        # A launch on one of several hosts has its telemetry under no name.
        here = alone or {rank.host for rank in result.ranks} == {host} if name is None else name == host
        if here and part:
            yield part


def _errors(run: Run, host: str, *, alone: bool) -> Errors | None:
    """The growth of each port's counters, summed over all launches; None where there are no ports."""
    sums: dict[str, dict[str, int]] = {}
    for result in (*run.results, *run.replaced):
        for part in _parts(result, host, alone):
            for (_, port), counters in network_errors(part).items():
                of_port = sums.setdefault(port, {})
                for name, grown in counters.items():
                    of_port[name] = of_port.get(name, 0) + grown
    return sums or None


def rank_sites(run: Run) -> tuple[RankSite, ...]:
    """Where the ranks of the largest launch ran; only those whose cores and host are known."""
    topologies = topologies_of(run.environment)
    largest = max(run.of_status("ok"), key=lambda result: len(result.ranks), default=None)
    if largest is None:
        return ()
    on_network = len({rank.host for rank in largest.ranks}) > 1
    sites = (_site(rank, topologies, on_network=on_network) for rank in largest.ranks)
    return tuple(site for site in sites if site is not None)


def _site(rank: RankRecord, topologies: Mapping[str, Topology], *, on_network: bool) -> RankSite | None:
    only = next(iter(topologies.values())) if len(topologies) == 1 else None
    topology, cores = topologies.get(rank.host, only), cores_of(str(rank.counters.get("affinity") or ""))
    if topology is None or not cores:
        return None
    nodes = topology.numa_nodes_of(cores)
    gpu = topology.gpu(str(rank.counters.get("gpu_uuid") or ""))
    nic, path = _nic_of(topology, gpu)
    return RankSite(
        rank=rank.rank,
        host=rank.host,
        cores=cores,
        numa_nodes=nodes,
        gpu=gpu,
        gpu_distance=None if gpu is None else _distance(topology, nodes, gpu.numa_node),
        nic=nic,
        nic_path=path,
        nic_distance=_distance(topology, nodes, nic.numa_node) if nic is not None and on_network else None,
    )


def _nic_of(topology: Topology, gpu: GpuSite | None) -> tuple[NicSite | None, str | None]:
    """The card next to a GPU; of a rank without one, the host's only card."""
    if gpu is not None:
        return topology.nearest_nic(gpu) or (None, None)
    return (topology.nics[0], None) if len(topology.nics) == 1 else (None, None)


def _distance(topology: Topology, nodes: tuple[int, ...], device: int | None) -> int | None:
    """From the nearest of some NUMA nodes to a device's; on a host with a single one all are local."""
    if len(topology.numa_cores) == 1 and device is None:
        return LOCAL_DISTANCE
    known = [] if device is None else [topology.numa_distance(node, device) for node in nodes]
    return min((distance for distance in known if distance is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortErrors:
    """A port whose error counters grew."""

    host: str
    port: str
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        counts = ", ".join(f"{name} +{grown}" for name, grown in self.counters.items())
        return f"{self.port} of {self.host}: {counts}"


def ports_with_errors(run: Run) -> tuple[PortErrors, ...]:
    """The ports of all nodes whose error counters grew during launches."""
    return tuple(
        PortErrors(host=node.host, port=port, counters=counters)
        for node in node_facts(run)
        for port, counters in (node.errors or {}).items()
        if counters
    )


# ---- Checks of several hosts: each host separately, and what differs between them


# These name one rank's own GPUs or host: they differ where nothing is wrong.
_MAY_DIFFER = ("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChecks:
    """One host: what it is, which ranks it has, and all that was looked at."""

    host: str
    machine: Machine
    system: Mapping[str, Any]
    ranks: tuple[int, ...]
    checks: tuple[Check, ...]

    @property
    def doubts(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level != "ok")


def checks_of_hosts(
    nodes: Mapping[str, Machine],
    systems: Mapping[str, Mapping[str, Any]],
    ranks: Mapping[str, tuple[int, ...]],
) -> tuple[HostChecks, ...]:
    """Each host separately, including what matters only with several hosts."""
    hosts = []
    for host, machine in nodes.items():
        system, host_ranks = systems[host], ranks[host]
        variables = system.get("variables", {})
        checks = (*all_checks(machine, system, variables, len(host_ranks)), *_name(system, variables))
        hosts.append(HostChecks(host=host, machine=machine, system=system, ranks=host_ranks, checks=checks))
    return tuple(hosts)


def checks_between(hosts: Sequence[HostChecks]) -> tuple[Check, ...]:
    """What differs between hosts that should be the same."""
    machines = {host.host: host.machine for host in hosts}
    unequal = [(difference, "all ranks wait for the slowest host") for difference in differences(machines)]
    unequal += [
        (difference, f"export the same {difference.name} on every host")
        for difference in _unequal_variables(hosts)
    ]
    return tuple(
        Check(level="warn", subject="hosts differ", text=difference.text, advice=advice)
        for difference, advice in unequal
    )


def _unequal_variables(hosts: Sequence[HostChecks]) -> list[NodeDifference]:
    names = dict.fromkeys(name for host in hosts for name in host.system.get("variables", {}))
    return unlike(
        {
            name: {host.host: host.system.get("variables", {}).get(name, "unset") for host in hosts}
            for name in names
            if name not in _MAY_DIFFER
        }
    )


def _name(system: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Check]:
    """A host whose name resolves to a loopback address: gloo gives that address to the other hosts."""
    address = system.get("own_address") or ""
    if address.startswith("127.") and "GLOO_SOCKET_IFNAME" not in variables:
        yield Check(
            level="warn",
            subject="host name",
            text=f"resolves to {address}, which other hosts cannot reach",
            advice="export GLOO_SOCKET_IFNAME=INTERFACE, or fix /etc/hosts, if ranks use gloo",
        )
