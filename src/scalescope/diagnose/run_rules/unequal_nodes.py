"""Unequal nodes: hosts that should be alike are not, and all wait for the slowest."""

from scalescope.analysis.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.results.run import Run

RULE = "nodes differ"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    differences = [str(one) for one in run.environment.get("node_differences") or ()]
    if not differences:
        return None
    late = max(filter(None, map(_straggler, cases)), default=(0.0, 0.0, ""))
    lost, share, blamed = late
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{'; '.join(differences)}. {blamed or 'All ranks go at the pace of the slowest node.'}",
        lost=lost,
        share=share,
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


def _straggler(facts: Facts) -> tuple[float, float, str] | None:
    """What waiting for one rank costs where that rank is known: ranks, their share, and which it is."""
    lost, waterfall = facts.lost(STRAGGLERS), facts.waterfall
    late = None if waterfall is None else waterfall.straggler
    if not lost or late is None or not late.persistent or late.rank >= len(facts.hosts):
        return None
    host = facts.hosts[late.rank]
    return lost, lost / facts.ranks, f"Rank {late.rank} on {host} is the one that all wait for."
