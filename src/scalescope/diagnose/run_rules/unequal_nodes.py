"""Unequal nodes: hosts that should be the same are not, and all ranks wait for the slowest."""

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import differing_nodes
from scalescope.results.old_formats import node_differences_of
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK

RULE = "nodes differ"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    differences = node_differences_of(run.environment)
    if not differences:
        return None
    blamed = [facts for facts in cases if facts.culprit_host in _differing_nodes(run)]
    worst = max(blamed, key=lambda facts: facts.lost(STRAGGLERS) or 0.0, default=None)
    lost = 0.0 if worst is None else worst.lost(STRAGGLERS) or 0.0
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{'; '.join(difference.text for difference in differences)}. {_slowest_text(worst)}",
        lost=lost,
        share=0.0 if worst is None else lost / worst.ranks,
        certain=worst is None or worst.is_sure(STRAGGLERS),
        single=worst is not None and worst.is_single(STRAGGLERS),
        evidence=tuple(
            Evidence(name=difference.name, value=difference.values_text, source="inspection of every node")
            for difference in differences
        ),
        advice=(Advice(label="compare all nodes (under srun or torchrun)", argv=CHECK),),
    )


def _differing_nodes(run: Run) -> set[str]:
    """The nodes that differ from most."""
    nodes = run.environment.get("nodes") or {}
    return differing_nodes({name: Machine.from_json(node) for name, node in nodes.items()})


def _slowest_text(facts: Facts | None) -> str:
    if facts is None or facts.culprit is None:
        return "All ranks wait for the slowest node."
    return f"All ranks wait for rank {facts.culprit.rank} on {facts.culprit_host}."
