"""Last bucket too large: it is sent when backward is over, and nothing is left to hide it."""

from scalescope.analysis.waterfall import EXPOSED
from scalescope.diagnose.advice import advise
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.network import is_latency

RULE = "last bucket too large"
_MOST = 0.5  # of all gradients


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, buckets = facts.lost(EXPOSED), facts.bucket_bytes
    if not lost or not buckets or buckets[-1] < _MOST * sum(buckets) or is_latency(facts):
        return None
    last, total = buckets[-1], sum(buckets)
    # What part of it smaller buckets could hide depends on when gradients are ready: at most half is claimed.
    hidden = lost * last / total / 2.0
    whole = "all gradients leave in one bucket" if len(buckets) == 1 else f"{last / total:.0%} leave last"
    return Finding(
        rule=RULE,
        claim=f"{whole} ({last / 1e6:.1f} MB), when backward is over and nothing can hide them.",
        lost=hidden,
        share=hidden / facts.ranks,
        evidence=(
            Evidence(name="last bucket", value=last, unit="bytes", source="DDP"),
            Evidence(name="all buckets", value=total, unit="bytes", source="DDP"),
        ),
        advice=advise(facts, "smaller buckets start earlier", "bucket_cap_mb"),
    )
