"""Communication-bound by latency: what is exposed is the number of exchanges, not their size."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise, advise_more, batch_name
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.network import is_latency, is_slow_to_start

RULE = "communication-bound by latency"
_ONE_CORE = " Each rank has one core for compute and for gloo's thread, which adds to it."
_NOT_THE_ROOT = 0.9  # on a usual network small buckets or a small model are, where they are found


def rule(facts: Facts) -> Finding | Abstention | None:
    lost = facts.lost(COMMUNICATION)
    if not lost or facts.latency_s is None or not is_latency(facts) or not facts.transfer_explains_wait:
        return None
    count, slow = len(facts.bucket_bytes or (1,)), is_slow_to_start(facts)
    remark = _ONE_CORE if facts.trial.gloo_shares_core else ""
    return Finding(
        rule=RULE,
        term=COMMUNICATION,
        root=slow,
        claim=f"Exchanges are so small that their latency dominates: {count} per step, about "
        f"{facts.latency_s * 1e6:,.0f} µs each.{remark}",
        lost=lost,
        share=lost / facts.ranks * (1.0 if slow else _NOT_THE_ROOT),
        evidence=(
            Evidence(name="latency", value=facts.latency_s, unit="s", source="smallest all-reduce measured"),
            Evidence(name="buckets", value=count, source="DDP"),
        ),
        advice=(
            *(
                advise_more(facts, "larger buckets, fewer exchanges", "bucket_cap_mb", 100.0)
                if count > 1
                else ()
            ),
            *advise(facts, "compute more per exchange", batch_name(facts)),
            *advise(facts, "exchange less often", "accumulation_steps"),
        ),
    )
