"""Rules about a step of several ranks: batch norm, buffers and uneven work."""

import statistics

from scalescope.analysis.training.uneven_work import UnevenWork
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import data_size, in_ms, percent

# ---- SyncBatchNorm: layers that exchange statistics wait for all ranks, twice each per batch


SYNC_BATCH_NORM = "batch norm waits for all ranks"
_EXCHANGES = 2  # of a layer: one in the forward pass and one in the backward pass
_LARGE_BATCH = 16  # samples per rank: a common rule of thumb for statistics of a rank's own samples


def sync_batch_norm_rule(facts: StepFacts) -> Finding | Abstention | None:
    layers = facts.model.sync_batch_norms
    if facts.ranks == 1 or not layers:
        return None
    exchanges = layers * _EXCHANGES * facts.trial.accumulation_steps
    latency_s = _latency_s(facts)
    cost_s = None if latency_s is None else exchanges * latency_s
    if cost_s is not None and not facts.is_worth(cost_s):
        return None
    takes = "" if cost_s is None else f", which takes at least {in_ms(cost_s)}"
    count = "1 SyncBatchNorm layer exchanges" if layers == 1 else f"{layers} SyncBatchNorm layers exchange"
    return facts.finding(
        SYNC_BATCH_NORM,
        f"{count} statistics with all ranks {exchanges} times per step{takes}. No kernel of the model "
        "hides these exchanges.",
        cost_s,
        estimated=latency_s is not None,
        evidence=(
            Evidence(name="SyncBatchNorm layers", value=layers, source="the model"),
            Evidence(name="exchanges", value=exchanges, unit="per step", source="the model"),
            *(
                ()
                if latency_s is None
                else (
                    Evidence(
                        name="latency", value=latency_s, unit="s", source="all-reduce curve of this run"
                    ),
                )
            ),
        ),
        advice=_advice(facts),
    )


def _latency_s(facts: StepFacts) -> float | None:
    """Of the smallest exchange that was measured: statistics are a few values per channel."""
    curve = facts.exchange
    return curve.points[0][1] if curve is not None and curve.points else None


def _advice(facts: StepFacts) -> tuple[Advice, ...]:
    batch = facts.trial.micro_batch_size
    if batch < _LARGE_BATCH:
        return ()
    return (
        Advice(
            label=f"leave out nn.SyncBatchNorm.convert_sync_batchnorm: {batch} samples per rank "
            "are usually enough for nn.BatchNorm",
            changes_job=True,
        ),
    )


# ---- Buffers are broadcast before every step: often they need not be equal on all ranks


BUFFERS = "buffers are broadcast before every step"


def buffers_rule(facts: StepFacts) -> Finding | Abstention | None:
    size = facts.model.buffer_bytes
    if facts.ranks == 1 or not facts.trial.is_on("broadcast_buffers") or not size:
        return None
    cost_s = _cost_s(facts, size)
    return facts.finding(
        BUFFERS,
        f"{data_size(size)} of buffers are sent from rank 0 before every forward pass.",
        cost_s,
        estimated=bool(cost_s),
        evidence=(Evidence(name="buffers", value=size, unit="bytes", source="the model"),),
        advice=advise(facts, "do not broadcast buffers", "broadcast_buffers", "no"),
    )


def _cost_s(facts: StepFacts, size: int) -> float | None:
    """What sending them takes, by an all-reduce of as many bytes; 0 where that is little."""
    curve = facts.exchange
    if curve is None or not curve.points or size > curve.points[-1][0]:
        return None
    cost_s = curve.time_s(max(size, curve.points[0][0])) * facts.trial.accumulation_steps
    return cost_s if facts.is_worth(cost_s) else 0.0


# ---- Uneven work: batches hold more on some ranks, and all others wait for those


UNEVEN_WORK = "uneven work per rank"


def uneven_work_rule(facts: StepFacts) -> Finding | Abstention | None:
    if facts.ranks < 2 or facts.trial.strategy_card.replicas(facts.ranks) < facts.ranks:
        return None
    uneven = facts.uneven_work
    if uneven is None or not facts.is_worth(uneven.cost_s):
        return None
    return facts.finding(
        UNEVEN_WORK,
        f"{_claim(uneven)}. The data is the cause, not a slow rank.",
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
        advice=_uneven_work_advice(uneven),
    )


def _claim(uneven: UnevenWork) -> str:
    if uneven.heaviest is None:
        more = percent(uneven.most_over_mean - 1.0)
        return (
            f"Batches differ between ranks: in each step the largest holds {more} "
            f"more {uneven.unit} than the mean of all ranks, and the other ranks wait for it"
        )
    most = uneven.by_rank[uneven.heaviest]
    others = [work for rank, work in enumerate(uneven.by_rank) if rank != uneven.heaviest]
    return (
        f"Rank {uneven.heaviest} has {most:,.0f} {uneven.unit} per step, and the others "
        f"have {statistics.fmean(others):,.0f} and wait for it"
    )


def _uneven_work_advice(uneven: UnevenWork) -> tuple[Advice, ...]:
    if uneven.unit == "tokens":
        return (
            Advice(label="sort or bucket samples by length, to give all ranks batches of similar length"),
            Advice(label="form batches by number of tokens, equal on all ranks, to reduce padding"),
        )
    return (Advice(label="give all ranks batches of the same size: shard and collate by elements"),)
