"""Unstable measurement: launches disagree more than a calm machine's do."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "unstable measurement"


def rule(facts: Facts) -> Finding | Abstention | None:
    doubts = facts.row.configuration.instabilities()
    if not doubts:
        return None
    return Finding(
        rule=RULE,
        claim=f"Take the figures with care: {doubts[0]}.",
        lost=0.0,
        share=0.0,
        evidence=tuple(
            Evidence(name=f"doubt {number}", value=doubt, source="launches")
            for number, doubt in enumerate(doubts, start=1)
        ),
        advice=(Advice(label="see what else runs here; more --repeats help", command="scalescope check"),),
    )
