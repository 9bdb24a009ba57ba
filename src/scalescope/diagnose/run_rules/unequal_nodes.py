"""Unequal nodes: hosts that should be the same are not, and all ranks wait for the slowest."""

from scalescope.analysis.scaling.waterfall import STRAGGLERS
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import differences, differing_nodes
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK

RULE = "nodes differ"


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    nodes = {host: Machine.from_json(node) for host, node in (run.environment.get("nodes") or {}).items()}
    unlike = differences(nodes)
    if not unlike:
        return None
    differing = differing_nodes(nodes)
    blamed = [facts for facts in cases if facts.culprit_host in differing]
    worst = max(blamed, key=lambda facts: facts.lost(STRAGGLERS) or 0.0, default=None)
    lost = 0.0 if worst is None else worst.lost(STRAGGLERS) or 0.0
    return Finding(
        rule=RULE,
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
