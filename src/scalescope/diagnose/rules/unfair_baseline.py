"""Unfair baseline: the speedup is not relative to plain training on one rank."""

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "the baseline is not plain training on one rank"


def rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if row.is_baseline:
        return None
    if row.baseline_ranks > 1:
        return _finding(
            f"Speedups are relative to {row.baseline_ranks} ranks, which already lose some speed: relative "
            "to one rank they are smaller.",
            f"{row.baseline_ranks} ranks",
        )
    if facts.one_rank is None and facts.trial.mode == "weak" and not facts.trial.is_command:
        return _finding(
            "Speedups are relative to one rank inside the wrapper, not to plain training: the cost of the "
            "wrapper is left out.",
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
