"""Unequal nodes: hosts that should be alike are not, and all wait for the slowest."""

from dataclasses import dataclass

from scalescope.analysis.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.experiment.machine import Machine
from scalescope.experiment.nodes import odd_ones
from scalescope.results.run import Run

RULE = "nodes differ"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    differences = [str(one) for one in run.environment.get("node_differences") or ()]
    if not differences:
        return None
    late = max(filter(None, (_late(run, facts) for facts in cases)), key=lambda one: one.lost, default=None)
    pace = "All ranks go at the pace of the slowest node."
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{'; '.join(differences)}. {late.blamed if late else pace}",
        lost=late.lost if late else 0.0,
        share=late.share if late else 0.0,
        certain=late.certain if late else True,
        evidence=tuple(
            Evidence(name=name, value=text, source="every node's own word")
            for name, text in (one.split(": ", 1) for one in differences)
        ),
        advice=(
            Advice(
                text="look at all nodes side by side (under srun or torchrun)", command="scalescope check"
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """What it costs to wait for a rank on a node that differs."""

    lost: float
    share: float
    certain: bool
    blamed: str


def _late(run: Run, facts: Facts) -> _Late | None:
    """The rank that is always late, where its node is one of those that differ from most."""
    lost, waterfall = facts.lost(STRAGGLERS), facts.waterfall
    late = None if waterfall is None else waterfall.straggler
    if not lost or late is None or not late.persistent or late.rank >= len(facts.hosts):
        return None
    host = facts.hosts[late.rank]
    nodes = {name: Machine.from_json(one) for name, one in (run.environment.get("nodes") or {}).items()}
    if host not in odd_ones(nodes):
        return None
    return _Late(
        lost=lost,
        share=lost / facts.ranks,
        certain=facts.is_sure(STRAGGLERS),
        blamed=f"Rank {late.rank} on {host} is the one that all wait for.",
    )
