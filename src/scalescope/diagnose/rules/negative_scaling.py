"""Negative scaling: several ranks are slower than one."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "negative scaling"


def rule(facts: Facts) -> Finding | Abstention | None:
    speedup = facts.row.speedup
    sure = speedup.high is None or speedup.high < 1.0
    if facts.row.is_baseline or facts.row.baseline_ranks != 1 or speedup.value >= 1.0 or not sure:
        return None
    lost = facts.ranks - speedup.value
    largest = facts.waterfall.largest if facts.waterfall is not None else None
    why = ""
    evidence = [Evidence(name="speedup", value=speedup.value, source="throughput against plain training")]
    if largest is not None and largest.lost is not None and largest.lost.value > 0.5 * lost:
        why = f", mostly because of {largest.name}"
        evidence.append(Evidence(name="largest loss", value=largest.name, source="the waterfall"))
    return Finding(
        rule=RULE,
        claim=f"{facts.ranks} ranks are slower than one ({speedup.value:.2f}×){why}.",
        lost=lost,
        share=lost / facts.ranks,
        symptom=True,
        evidence=tuple(evidence),
    )
