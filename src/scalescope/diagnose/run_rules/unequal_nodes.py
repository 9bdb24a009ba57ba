"""Unequal nodes: hosts that should be alike are not, and all wait for the slowest."""

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.experiment.machine import Machine
from scalescope.experiment.nodes import differing_nodes
from scalescope.results.run import Run

RULE = "nodes differ"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    differences = [str(one) for one in run.environment.get("node_differences") or ()]
    if not differences:
        return None
    blamed = [facts for facts in cases if _host_of_late_rank(facts) in _odd_ones(run)]
    worst = max(blamed, key=lambda facts: facts.lost(STRAGGLERS) or 0.0, default=None)
    lost = 0.0 if worst is None else worst.lost(STRAGGLERS) or 0.0
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{'; '.join(differences)}. {_whom_all_wait_for(worst)}",
        lost=lost,
        share=0.0 if worst is None else lost / worst.ranks,
        certain=worst is None or worst.is_sure(STRAGGLERS),
        single=worst is not None and worst.is_single(STRAGGLERS),
        evidence=tuple(
            Evidence(name=name, value=text, source="every node's own word")
            for name, text in (difference.split(": ", 1) for difference in differences)
        ),
        advice=(
            Advice(
                label="look at all nodes side by side (under srun or torchrun)", command="scalescope check"
            ),
        ),
    )


def _odd_ones(run: Run) -> set[str]:
    """The nodes that differ from most."""
    nodes = run.environment.get("nodes") or {}
    return differing_nodes({name: Machine.from_json(node) for name, node in nodes.items()})


def _host_of_late_rank(facts: Facts) -> str | None:
    late = facts.always_late
    return facts.hosts[late.rank] if late is not None and late.rank < len(facts.hosts) else None


def _whom_all_wait_for(facts: Facts | None) -> str:
    if facts is None or facts.always_late is None:
        return "All ranks go at the pace of the slowest node."
    return f"Rank {facts.always_late.rank} on {_host_of_late_rank(facts)} is the one that all wait for."
