"""find_unused_parameters on: a walk through the graph and an exchange in every step."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "find_unused_parameters is on"


def rule(facts: Facts) -> Finding | Abstention | None:
    trial = facts.trial
    if not trial.is_on("find_unused_parameters") or trial.is_on("static_graph"):
        return None
    return Finding(
        rule=RULE,
        claim="DDP looks for unused parameters in every step, never rebuilds its buckets, and exchanges "
        "once more.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="find_unused_parameters", value="true", source="settings"),),
        advice=advise(facts, "switch it off, if no parameter is unused", "find_unused_parameters", "no"),
    )
