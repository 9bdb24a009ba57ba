"""Communication-bound by latency: what is exposed is the number of exchanges, not their size."""

from scalescope.diagnose.advice import command
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.network import is_latency

RULE = "communication-bound by latency"


def rule(facts: Facts) -> Finding | Abstention | None:
    lost = facts.communication_lost
    if not lost or facts.latency_s is None or not is_latency(facts):
        return None
    count = len(facts.bucket_bytes or (1,))
    return Finding(
        rule=RULE,
        root=True,
        claim=f"Exchanges are so small that starting them is what takes the time: {count} of about "
        f"{facts.latency_s * 1e6:.0f} µs each.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="latency", value=facts.latency_s, unit="s", source="smallest all-reduce measured"),
            Evidence(name="buckets", value=count, source="DDP"),
        ),
        advice=(
            Advice(text="larger buckets, fewer exchanges", command=command(facts, "bucket_cap_mb=100")),
            Advice(text="exchange less often", command=command(facts, "accumulation_steps")),
        ),
    )
