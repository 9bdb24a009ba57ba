"""Unused network cards: NCCL sends over fewer cards than the node has of the fastest kind."""

from collections.abc import Iterator

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import NicSite, Topology, topologies_of

RULE = "unused network cards"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    topologies = topologies_of(run.environment)
    logged = [facts for facts in cases if facts.nccl is not None and dict(_unused(facts, topologies))]
    if not logged:
        return None
    worst = logged[0]  # on most ranks
    unused = dict(_unused(worst, topologies))
    channels = worst.nccl.channels if worst.nccl is not None else None
    texts = [f"{len(used)} of {len(fastest)} on {host}" for host, (used, fastest) in unused.items()]
    return Finding(
        rule=RULE,
        claim=f"NCCL uses fewer network cards than there are of the fastest kind ({'; '.join(texts)}): "
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
