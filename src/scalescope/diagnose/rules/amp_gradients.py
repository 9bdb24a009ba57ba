"""fp32 gradients under autocast: the traffic did not shrink with the compute."""

from scalescope.analysis.scaling.waterfall import EXPOSED
from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "gradients in fp32 under autocast"


def rule(facts: Facts) -> Finding | Abstention | None:
    settings = facts.trial.settings
    lost = facts.lost(EXPOSED)
    if not lost or settings["precision"] not in ("bf16", "fp16") or settings.get("comm_hook") != "none":
        return None
    return Finding(
        rule=RULE,
        term=EXPOSED,
        claim=f"{settings['precision']} made compute faster, but gradients still travel in fp32.",
        lost=lost / 2,
        share=lost / 2 / facts.ranks,
        evidence=(Evidence(name="precision", value=str(settings["precision"]), source="settings"),),
        advice=advise(facts, "send gradients in 16 bits", "comm_hook", "bf16"),
    )
