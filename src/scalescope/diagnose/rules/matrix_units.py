"""Tensor cores idle: fp32 products on a GPU that has units for shorter formats."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "matrix units are idle"


def rule(facts: Facts) -> Finding | Abstention | None:
    one_rank = facts.one_rank
    if not facts.trial.on_gpu or facts.trial.precision != "fp32" or one_rank is None:
        return None
    formats = facts.short_formats
    if formats is None:
        return Abstention(rule=RULE, missing="which number formats the GPU has matrix units for")
    if not formats:
        return None
    *others, last = formats
    names = f"{', '.join(others)} and {last} do" if others else f"{last} does"
    return Finding(
        rule=RULE,
        claim=f"fp32 products do not use the GPU's matrix units; {names}. This speeds up compute, but not "
        "the exchange of gradients.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="precision", value="fp32", source="settings"),),
        advice=tuple(
            advice for name in formats for advice in advise(facts, f"compute in {name}", "precision", name)
        ),
    )
