"""Ranks share a GPU: the result is not a scaling measurement."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "ranks share a GPU"


def rule(facts: Facts) -> Finding | Abstention | None:
    if not facts.trial.oversubscribe:
        return None
    lost = max(0.0, facts.ranks * (1.0 - facts.row.efficiency.value))
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{facts.ranks} ranks share GPUs and take turns on them: this is not a scaling measurement.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(Evidence(name="oversubscribe", value="true", source="settings"),),
        advice=(Advice(label="check which rank uses which GPU", argv=CHECK),),
    )
