"""No overlap: ranks wait for nearly the whole exchange of gradients."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

NO_OVERLAP = "communication is not overlapped"
_NEARLY_ALL = 0.9


def no_overlap_rule(facts: Facts) -> Finding | Abstention | None:
    lost, waiting_s, exchange_s = facts.lost(COMMUNICATION), facts.waiting_s, facts.exchange_s
    if not lost or waiting_s is None:
        return None
    if facts.curve is None or exchange_s is None:
        return Abstention(rule=NO_OVERLAP, missing="how long an all-reduce of the gradients takes")
    if waiting_s < _NEARLY_ALL * exchange_s:
        return None
    return Finding(
        rule=NO_OVERLAP,
        claim=f"The exchange of gradients takes {exchange_s * 1e3:.1f} ms, nearly all of it exposed.",
        lost=lost,
        share=lost / facts.ranks,
        terms=(COMMUNICATION,),
        evidence=(Evidence(name="exchange", value=exchange_s, unit="s", source=facts.exchange_source),),
        advice=advise(facts, "send gradients during backward", "strategy", "ddp"),
    )
