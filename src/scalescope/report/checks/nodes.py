"""The nodes of a run: what each is made of and what it did, a row each; with -v where every rank ran."""

from scalescope.analysis.checks.node_facts import Errors, NodeFacts, RankSite, node_facts, rank_sites
from scalescope.analysis.checks.topology import gpus_text, nic_text, numa_text
from scalescope.report.numbers import MISSING, counted, percent
from scalescope.report.section import Section, Table
from scalescope.results.run import Run
from scalescope.results.topology import NicSite

_COLUMNS = (
    "node",
    "NUMA nodes",
    "network",
    "GPUs",
    "CPU busy",
    "GPU busy",
    "GPU slowdowns",
    "network errors",
)
_OPTIONAL = ("GPU busy", "GPU slowdowns", "network errors", "CPU busy")


def node_sections(run: Run, *, label: str = "") -> tuple[Section, ...]:
    """A table for runs on several nodes; of a single one the same in lines, on request."""
    nodes = [node for node in node_facts(run) if node.topology is not None]
    if not nodes:
        return ()
    ranks = tuple(_rank_line(site) for site in rank_sites(run))
    if len(nodes) == 1:
        pairs = zip(_COLUMNS, _row(nodes[0]), strict=True)
        return (
            Section(
                title="Node",
                details=(*(f"{name}: {cell}" for name, cell in pairs if cell != MISSING), *ranks),
            ),
        )
    table = Table(
        columns=_COLUMNS,
        rows=tuple(_row(node) for node in nodes),
        left=frozenset(_COLUMNS),
        optional=_OPTIONAL,
    )
    return (Section(title=f"Nodes{f' of {label}' if label else ''}", table=table, details=ranks),)


def _row(node: NodeFacts) -> tuple[str, ...]:
    assert node.topology is not None
    summary = node.telemetry
    busy = None if summary is None else summary.host_utilization
    gpu_busy = None if summary is None else summary.gpu_utilization
    return (
        node.host,
        numa_text(node.topology),
        _network(node),
        gpus_text(node.topology),
        MISSING if busy is None else percent(busy),
        MISSING if gpu_busy is None else percent(gpu_busy),
        _slowdowns(node),
        _errors(node.errors),
    )


def _network(node: NodeFacts) -> str:
    """`8 × infiniband 400 Gbit/s (mlx5_0, …)`, or what the system calls its interfaces."""
    assert node.topology is not None
    kinds: dict[str, list[NicSite]] = {}
    for nic in node.topology.nics:
        kinds.setdefault(nic_text(nic), []).append(nic)
    shown = [f"{len(nics)} × {kind} ({', '.join(nic.name for nic in nics)})" for kind, nics in kinds.items()]
    return (
        "; ".join(shown)
        or ", ".join(str(interface.get("name")) for interface in node.interfaces)
        or "unknown"
    )


def _slowdowns(node: NodeFacts) -> str:
    """What slowed GPUs down; a power cap is information."""
    slowed = () if node.telemetry is None else node.telemetry.slowed_gpus
    names = dict.fromkeys(name for gpu in slowed for name in gpu.reasons)
    shown = [f"{name} ({counted(sum(name in gpu.reasons for gpu in slowed), 'GPU')})" for name in names]
    return ", ".join(shown) or MISSING


def _errors(errors: Errors | None) -> str:
    if errors is None:
        return MISSING
    grown = {port: sum(counters.values()) for port, counters in errors.items() if counters}
    return ", ".join(f"{port}: {count}" for port, count in grown.items()) or "none"


def _rank_line(site: RankSite) -> str:
    """`Rank 3 on n2: cores 32-63 on NUMA node 1, GPU 3 on NUMA node 0 (distance 21), mlx5_3 over PIX`."""
    parts = [f"cores {site.core_text} on NUMA node {' and '.join(map(str, site.numa_nodes)) or 'unknown'}"]
    if site.gpu is not None:
        parts.append(f"GPU {site.gpu.index}{_where(site.gpu.numa_node, site.gpu_distance)}")
    if site.nic is not None:
        path = "" if site.nic_path is None else f" over {site.nic_path}"
        parts.append(f"{site.nic.name}{path}{_where(site.nic.numa_node, site.nic_distance)}")
    return f"Rank {site.rank} on {site.host}: {', '.join(parts)}"


def _where(numa_node: int | None, distance: int | None) -> str:
    far = "" if distance is None else f" (distance {distance})"
    return far if numa_node is None else f" on NUMA node {numa_node}{far}"
