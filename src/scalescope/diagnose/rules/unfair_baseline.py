"""Unfair baseline: the speedup is held against something other than plain training on one rank."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "the baseline is not plain training on one rank"


def rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if row.is_baseline:
        return None
    if row.baseline_ranks > 1:
        return _finding(
            f"Speedups are against {row.baseline_ranks} ranks, which have lost something already: against "
            "one rank they are smaller.",
            f"{row.baseline_ranks} ranks",
        )
    if facts.one_rank is None and facts.trial.mode == "weak":
        return _finding(
            "Speedups are against one rank inside the wrapper, not plain training: its cost is left out.",
            "one rank in the wrapper",
        )
    return None


def _finding(claim: str, baseline: str) -> Finding:
    return Finding(
        rule=RULE,
        claim=claim,
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="baseline", value=baseline, source="the smallest world size measured"),),
    )
