"""Unequal links: a ring is as fast as its slowest link, and one is far slower than the others."""

import statistics

from scalescope.analysis.collectives import slow_pairs, slow_ranks
from scalescope.analysis.waterfall import EXPOSED
from scalescope.diagnose.advice import comm_command
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding

RULE = "unequal links"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost = facts.communication_lost
    if facts.ranks < 3 or not lost:
        return None
    pairs_command = comm_command(facts, "--pairs")
    if not facts.pairs:
        return Abstention(rule=RULE, missing="the speed of every pair of ranks", command=pairs_command)
    ranks, pairs = slow_ranks(facts.pairs), slow_pairs(facts.pairs)
    if not ranks and not pairs:
        return None
    bad = set(ranks) | {rank for one in pairs for rank in (one.low, one.high)}
    good = [one for one in facts.pairs if not {one.low, one.high} & bad] or [
        one for one in facts.pairs if one not in pairs
    ]
    usual = statistics.median(one.bytes_per_s for one in good)
    slowest = min(facts.pairs, key=lambda one: one.bytes_per_s)
    names = [f"rank {rank}'s link" for rank in ranks]
    names += [f"the link between ranks {one.low} and {one.high}" for one in pairs]
    wasted = lost * (1.0 - slowest.bytes_per_s / usual)
    return Finding(
        rule=RULE,
        term=EXPOSED if facts.communication_is_told_apart else "",
        root=True,
        claim=f"{_together(names)} carries {slowest.bytes_per_s / 1e6:,.0f} MB/s where others carry "
        f"{usual / 1e6:,.0f}: all ranks exchange at its pace.",
        lost=wasted,
        share=wasted / facts.ranks,
        evidence=(
            Evidence(name="slowest pair", value=slowest.bytes_per_s, unit="bytes/s", source="pair by pair"),
            Evidence(name="usual pair", value=usual, unit="bytes/s", source="median of all pairs"),
        ),
        advice=(Advice(text="measure every pair again, and look at that link", command=pairs_command),),
    )


def _together(names: list[str]) -> str:
    text = " and ".join(names)
    return text[0].upper() + text[1:]
