"""Far cores: a rank computes on another NUMA node than its GPU or its network card is attached to."""

from scalescope.analysis.checks.node_facts import RankSite, rank_sites
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import LOCAL_DISTANCE, topologies_of

RULE = "cores far from the GPU or network card"
_SHOWN = 4


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    sites = rank_sites(run)
    if not sites:
        return _unknown(run)
    far = [site for site in sites if site.is_far]
    if not far:
        return None
    more = f"; so are {len(far) - _SHOWN} more ranks" if len(far) > _SHOWN else ""
    return Finding(
        rule=RULE,
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
    return Abstention(rule=RULE, missing="the cores of every rank", argv=CHECK) if several else None


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
