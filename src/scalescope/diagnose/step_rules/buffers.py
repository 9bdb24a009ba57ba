"""Buffers are broadcast before every step: often they need not be equal on all ranks."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import data_size

RULE = "buffers are broadcast before every step"


def rule(facts: StepFacts) -> Finding | Abstention | None:
    size = facts.model.buffer_bytes
    if facts.ranks == 1 or not facts.trial.is_on("broadcast_buffers") or not size:
        return None
    cost_s = _cost_s(facts, size)
    return facts.finding(
        RULE,
        f"{data_size(size)} of buffers are sent from rank 0 before every forward pass.",
        cost_s,
        estimated=bool(cost_s),
        evidence=(Evidence(name="buffers", value=size, unit="bytes", source="the model"),),
        advice=advise(facts, "do not broadcast buffers", "broadcast_buffers", "no"),
    )


def _cost_s(facts: StepFacts, size: int) -> float:
    """What sending them takes, by an all-reduce of as many bytes; 0 where that is unknown or little."""
    curve = facts.exchange
    if curve is None or not curve.points or size > curve.points[-1][0]:
        return 0.0
    cost_s = curve.time_s(max(size, curve.points[0][0])) * facts.trial.accumulation_steps
    return cost_s if facts.is_worth(cost_s) else 0.0
