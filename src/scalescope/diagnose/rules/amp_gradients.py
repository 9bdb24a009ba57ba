"""fp32 gradients under autocast: compute got faster, the exchange did not."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "gradients in fp32 under autocast"


def rule(facts: Facts) -> Finding | Abstention | None:
    trial = facts.trial
    lost = facts.lost(COMMUNICATION)
    if not lost or trial.precision not in ("bf16", "fp16"):
        return None
    if not trial.has_setting("comm_hook") or trial.comm_hook != "none":
        return None
    return Finding(
        rule=RULE,
        terms=(COMMUNICATION,),
        claim=f"{trial.precision} made compute faster, but gradients are still sent in fp32.",
        lost=lost / 2,
        share=lost / 2 / facts.ranks,
        evidence=(Evidence(name="precision", value=trial.precision, source="settings"),),
        advice=advise(facts, "send gradients in 16 bits", "comm_hook", "bf16"),
    )
