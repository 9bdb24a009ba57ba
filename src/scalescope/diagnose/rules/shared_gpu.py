"""Two ranks on one GPU: what is measured is a GPU shared, not scaling."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "ranks share a GPU"


def rule(facts: Facts) -> Finding | Abstention | None:
    if not facts.trial.oversubscribe:
        return None
    lost = max(0.0, facts.ranks * (1.0 - facts.row.efficiency.value))
    return Finding(
        rule=RULE,
        root=True,
        claim=f"{facts.ranks} ranks share GPUs and take turns on them: this is no scaling measurement.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(Evidence(name="oversubscribe", value="true", source="settings"),),
        advice=(Advice(label="see which rank sits where", command="scalescope check"),),
    )
