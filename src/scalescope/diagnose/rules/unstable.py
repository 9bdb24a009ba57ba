"""Unstable measurement: launches differ more than on an idle machine."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import CHECK

RULE = "unstable measurement"


def rule(facts: Facts) -> Finding | Abstention | None:
    doubts = facts.row.configuration.instabilities()
    if not doubts:
        return None
    return Finding(
        rule=RULE,
        claim=f"The result is uncertain: {doubts[0]}.",
        lost=0.0,
        share=0.0,
        evidence=tuple(
            Evidence(name=f"doubt {number}", value=doubt, source="launches")
            for number, doubt in enumerate(doubts, start=1)
        ),
        advice=(Advice(label="check what else runs here; more --repeats help", argv=CHECK),),
    )
