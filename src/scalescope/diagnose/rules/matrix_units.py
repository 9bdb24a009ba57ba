"""Tensor cores idle: fp32 products on a GPU that has units for shorter formats."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "matrix units are idle"


def rule(facts: Facts) -> Finding | Abstention | None:
    one_rank = facts.one_rank
    if not facts.trial.on_gpu or facts.trial.precision != "fp32" or one_rank is None:
        return None
    return Finding(
        rule=RULE,
        claim="fp32 products do not use the GPU's matrix units; tf32 and bf16 do. They speed up compute, "
        "but not the exchange of gradients.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="precision", value="fp32", source="settings"),),
        advice=advise(facts, "try other number formats", "precision"),
    )
