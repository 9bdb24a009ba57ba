"""Uneven work: batches hold more on some ranks, and all others wait for those."""

import statistics

from scalescope.analysis.training.uneven_work import UnevenWork
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import percent

RULE = "uneven work per rank"


def rule(facts: StepFacts) -> Finding | Abstention | None:
    if facts.ranks < 2 or facts.trial.strategy_card.replicas(facts.ranks) < facts.ranks:
        return None
    uneven = facts.uneven_work
    if uneven is None or not facts.is_worth(uneven.cost_s):
        return None
    return facts.finding(
        RULE,
        f"{_claim(uneven)}. It is the data, not a slow rank.",
        uneven.cost_s,
        root=True,
        estimated=True,
        evidence=(
            *(
                Evidence(name=f"rank {rank}", value=work, unit=f"{uneven.unit} per step", source="batches")
                for rank, work in enumerate(uneven.by_rank)
            ),
            Evidence(name="largest batch over the mean", value=uneven.most_over_mean, source="batches"),
            Evidence(name="cost", value=uneven.cost_s, unit="s", source=uneven.source),
        ),
        advice=_advice(uneven),
    )


def _claim(uneven: UnevenWork) -> str:
    if uneven.heaviest is None:
        more = percent(uneven.most_over_mean - 1.0)
        return (
            f"Batches differ between ranks: in each step the largest holds {more} "
            f"more {uneven.unit} than the mean of all ranks, and they wait for it"
        )
    most = uneven.by_rank[uneven.heaviest]
    others = [work for rank, work in enumerate(uneven.by_rank) if rank != uneven.heaviest]
    return (
        f"Rank {uneven.heaviest} has {most:,.0f} {uneven.unit} per step and the others "
        f"{statistics.fmean(others):,.0f}, and they wait for it"
    )


def _advice(uneven: UnevenWork) -> tuple[Advice, ...]:
    if uneven.unit == "tokens":
        return (
            Advice(label="sort or bucket samples by length, so that all ranks get batches of similar length"),
            Advice(label="fill batches up to a number of tokens, equal on all ranks, and pad less"),
        )
    return (Advice(label="give all ranks batches of the same size: shard and collate by elements"),)
