"""Rules about the nodes of a run: cores, network cards and GPUs that are far, unused, broken or unlike."""

from collections.abc import Iterator

from scalescope.analysis.checks.nodes import RankSite, ports_with_errors, rank_sites
from scalescope.analysis.scaling.waterfall import COMMUNICATION, STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.experiment.machine import Machine, differences, differing_nodes
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import LOCAL_DISTANCE, NicSite, Topology, topologies_of

# ---- Far cores: a rank computes on another NUMA node than its GPU or its network card is attached to


FAR_CORES = "cores far from the GPU or network card"
_SHOWN = 4


def far_cores_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    sites = rank_sites(run)
    if not sites:
        return _unknown(run)
    far = [site for site in sites if site.is_far]
    if not far:
        return None
    more = f"; so are {len(far) - _SHOWN} more ranks" if len(far) > _SHOWN else ""
    return Finding(
        rule=FAR_CORES,
        claim=f"{'; '.join(map(_text, far[:_SHOWN]))}{more}. Copies to the device may be slower.",
        lost=0.0,  # copies and kernel launches from there: how much was not measured
        share=0.0,
        evidence=tuple(
            Evidence(
                name=f"rank {site.rank} on {site.host}",
                value=f"cores {site.core_text}",
                source="affinity of the rank, NUMA distances of its host",
            )
            for site in far
        ),
        advice=(
            Advice(label="bind each rank to cores next to its GPU (--pin-cores yes, --cpu-bind)", argv=CHECK),
        ),
    )


def _unknown(run: Run) -> Abstention | None:
    """Hosts with several NUMA nodes whose ranks' cores were not recorded."""
    several = any(len(topology.numa_cores) > 1 for topology in topologies_of(run.environment).values())
    return Abstention(rule=FAR_CORES, missing="the cores of every rank", argv=CHECK) if several else None


def _text(site: RankSite) -> str:
    """`Rank 3's cores on n2 are on NUMA node 1, its GPU is on node 0 (distance 21)`."""
    devices = []
    for device, name, distance in (
        (site.gpu, "its GPU", site.gpu_distance),
        (site.nic, f"the card {site.nic.name}" if site.nic else "", site.nic_distance),
    ):
        if device is not None and distance is not None and distance > LOCAL_DISTANCE:
            devices.append(f"{name} is on node {device.numa_node} (distance {distance})")
    nodes = " and ".join(map(str, site.numa_nodes))
    many = "s" if len(site.numa_nodes) > 1 else ""
    return f"Rank {site.rank}'s cores on {site.host} are on NUMA node{many} {nodes}, {' and '.join(devices)}"


# ---- Network errors: error counters of InfiniBand or RoCE ports grew while ranks exchanged data


NETWORK_ERRORS = "network errors"


def network_errors_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    ports = ports_with_errors(run)
    if not ports:
        return None
    return Finding(
        rule=NETWORK_ERRORS,
        claim=f"Network error counters increased during the launches: {'; '.join(p.text for p in ports)}. "
        "Packets may have been sent again.",
        lost=0.0,  # what sending again takes is part of communication, and not measured separately
        share=0.0,
        evidence=tuple(
            Evidence(
                name=f"{port.port} of {port.host}",
                value=", ".join(f"{name} +{grown}" for name, grown in port.counters.items()),
                source="/sys/class/infiniband, before and after each launch",
            )
            for port in ports
        ),
        advice=(Advice(label="check the cables and the switch ports of these links", argv=CHECK),),
    )


# ---- No GPUDirect: NCCL copies through host memory though GPU and network card share a PCIe switch


NO_GPUDIRECT = "NCCL does not use GPUDirect RDMA"
_CLOSE = ("PIX", "PXB")  # paths that do not cross the processor


def no_gpudirect_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    affected = [facts for facts in cases if facts.nccl is not None and facts.nccl.uses_gpudirect is False]
    if not affected:
        return None
    paths = {
        path for topology in topologies_of(run.environment).values() for path in topology.nic_paths.values()
    }
    if not paths:
        return Abstention(rule=NO_GPUDIRECT, missing="the paths between GPUs and network cards", argv=CHECK)
    if not paths & set(_CLOSE):
        return None  # across the processor it may not be faster
    worst = max(affected, key=lambda facts: facts.communication_lost or 0.0)
    assert worst.nccl is not None
    return Finding(
        rule=NO_GPUDIRECT,
        claim="NCCL sends through host memory, though GPUs and network cards share a PCIe switch "
        f"({', '.join(sorted(paths & set(_CLOSE)))}): this may limit the bandwidth between nodes.",
        lost=0.0,  # at most what communication costs; a run with GPUDirect would tell
        share=0.0,
        certain=worst.is_sure(COMMUNICATION),
        evidence=(
            Evidence(name="transport", value=", ".join(worst.nccl.network_transports), source="NCCL's log"),
            Evidence(name="paths", value=", ".join(sorted(paths)), source="nvidia-smi topo -m"),
        ),
        advice=(
            Advice(label="load nvidia-peermem or use DMA-BUF, and check NCCL_NET_GDR_LEVEL", argv=CHECK),
        ),
    )


# ---- Unequal nodes: hosts that should be the same are not, and all ranks wait for the slowest


UNEQUAL_NODES = "nodes differ"


def unequal_nodes_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    nodes = {host: Machine.from_json(node) for host, node in (run.environment.get("nodes") or {}).items()}
    unlike = differences(nodes)
    if not unlike:
        return None
    differing = differing_nodes(nodes)
    blamed = [facts for facts in cases if facts.culprit_host in differing]
    worst = max(blamed, key=lambda facts: facts.lost(STRAGGLERS) or 0.0, default=None)
    lost = 0.0 if worst is None else worst.lost(STRAGGLERS) or 0.0
    return Finding(
        rule=UNEQUAL_NODES,
        root=True,
        claim=f"{'; '.join(difference.text for difference in unlike)}. {_slowest_text(worst)}",
        lost=lost,
        share=0.0 if worst is None else lost / worst.ranks,
        certain=worst is None or worst.is_sure(STRAGGLERS),
        single=worst is not None and worst.is_single(STRAGGLERS),
        evidence=tuple(
            Evidence(name=difference.name, value=difference.values_text, source="inspection of every node")
            for difference in unlike
        ),
        advice=(Advice(label="compare all nodes (under srun or torchrun)", argv=CHECK),),
    )


def _slowest_text(facts: Facts | None) -> str:
    if facts is None or facts.culprit is None:
        return "All ranks wait for the slowest node."
    return f"All ranks wait for rank {facts.culprit.rank} on {facts.culprit_host}."


# ---- Unused network cards: NCCL sends over fewer cards than the node has of the fastest kind


UNUSED_NICS = "unused network cards"


def unused_nics_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    topologies = topologies_of(run.environment)
    logged = [facts for facts in cases if facts.nccl is not None and dict(_unused(facts, topologies))]
    if not logged:
        return None
    worst = logged[0]  # on most ranks
    unused = dict(_unused(worst, topologies))
    channels = worst.nccl.channels if worst.nccl is not None else None
    texts = [f"{len(used)} of {len(fastest)} on {host}" for host, (used, fastest) in unused.items()]
    return Finding(
        rule=UNUSED_NICS,
        claim=f"NCCL does not use all of the fastest network cards ({'; '.join(texts)}): "
        "this may limit the bandwidth between nodes.",
        lost=0.0,
        share=0.0,
        evidence=tuple(
            Evidence(
                name=f"cards of {host}",
                value=f"{', '.join(used)} of {', '.join(nic.name for nic in fastest)}",
                source="NCCL's log, /sys/class/infiniband",
            )
            for host, (used, fastest) in unused.items()
        )
        + (() if channels is None else (Evidence(name="channels", value=channels, source="NCCL's log"),)),
        advice=(Advice(label="check NCCL_IB_HCA and that all ports are active", argv=CHECK),),
    )


def _unused(
    facts: Facts, topologies: dict[str, Topology]
) -> Iterator[tuple[str, tuple[tuple[str, ...], tuple[NicSite, ...]]]]:
    """Of every host all of whose GPUs take part: the cards that NCCL uses, and those that it could."""
    if facts.nccl is None or facts.nodes < 2:
        return
    for host, used in facts.nccl.used_nics.items():
        topology = topologies.get(host)
        if topology is None or facts.hosts.count(host) < len(topology.gpus):
            continue  # a few GPUs do not need all cards
        fastest = _fastest(topology)
        if len(used) < len(fastest) and facts.nccl.uses_gpudirect is not None:
            yield host, (used, fastest)


def _fastest(topology: Topology) -> tuple[NicSite, ...]:
    """The cards with the highest rate: slower ones are for storage or the administration."""
    best = max((nic.rate_bytes_per_s or 0.0 for nic in topology.nics), default=0.0)
    return tuple(nic for nic in topology.nics if best and nic.rate_bytes_per_s == best)
