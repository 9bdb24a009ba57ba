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
        claim="DDP searches for unused parameters in every step, does not rebuild its buckets, and makes one "
        "more exchange.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="find_unused_parameters", value="true", source="settings"),),
        advice=advise(facts, "switch it off if every parameter is used", "find_unused_parameters", "no"),
    )
