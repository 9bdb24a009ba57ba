"""Buffers are broadcast before every step: often they need not be equal on all ranks."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "buffers are broadcast before every step"


def rule(facts: Facts) -> Finding | Abstention | None:
    if not facts.trial.is_on("broadcast_buffers") or not facts.buffer_bytes:
        return None
    return Finding(
        rule=RULE,
        claim=f"{facts.buffer_bytes / 1e3:.0f} kB of buffers are sent from rank 0 before every forward pass.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="buffers", value=facts.buffer_bytes, unit="bytes", source="the model"),),
        advice=advise(facts, "do not broadcast buffers", "broadcast_buffers", "no"),
    )
