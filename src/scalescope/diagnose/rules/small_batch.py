"""Batch too small: little is computed for every exchange, and the network is not the first cause."""

from scalescope.analysis.commands.batches import counts_tokens
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise, batch_name
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.network import ENOUGH_WORK, has_enough_work, is_bound_by_network
from scalescope.diagnose.rules.exposed_latency import rule as latency_decides
from scalescope.diagnose.rules.last_bucket import rule as last_bucket_is_large
from scalescope.diagnose.rules.small_buckets import rule as buckets_are_small
from scalescope.diagnose.rules.small_model import rule as model_is_small

RULE = "too little work for every exchange"
_MORE_EXACT = (model_is_small, buckets_are_small, latency_decides)


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, compute_s, exchange_s = facts.lost(COMMUNICATION), facts.compute_s, facts.exchange_s
    if (
        not lost
        or compute_s is None
        or exchange_s is None
        or has_enough_work(facts)
        or is_bound_by_network(facts)
        or not facts.transfer_explains_wait
        or any(isinstance(cause(facts), Finding) for cause in _MORE_EXACT)
        or _last_bucket_decides(facts)
    ):
        return None
    wanted_s = ENOUGH_WORK * exchange_s
    batch = facts.row.batch
    enough = max(2 * batch, 1 << max(1, round(batch * wanted_s / compute_s) - 1).bit_length())
    return Finding(
        rule=RULE,
        term=COMMUNICATION,
        root=True,
        claim=f"A step computes for {compute_s * 1e3:.1f} ms and its exchange takes {exchange_s * 1e3:.1f} "
        f"ms; {_batch_of(facts, enough)} would compute for {wanted_s * 1e3:.0f} ms, which can hide it.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="compute", value=compute_s, unit="s", source="one rank alone"),
            Evidence(name="exchange", value=exchange_s, unit="s", source=facts.exchange_source),
        ),
        advice=(
            *advise(facts, "a larger batch", batch_name(facts), enough),
            *advise(facts, "exchange less often", "accumulation_steps"),
        ),
    )


def _batch_of(facts: Facts, enough: int) -> str:
    return f"about {enough:,} tokens" if counts_tokens(facts.trial) else f"a batch of about {enough:,}"


def _last_bucket_decides(facts: Facts) -> bool:
    """Whether other buckets would hide the exchange: they cost nothing, and another batch is another job."""
    outcome = last_bucket_is_large(facts)
    return isinstance(outcome, Finding) and outcome.root
