"""Buckets too small: many exchanges, each with its own latency."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise_more
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding

RULE = "buckets too small"
_WORSE = 1.5  # times one exchange of everything


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, buckets, exchange_s = facts.lost(COMMUNICATION), facts.bucket_bytes, facts.exchange_s
    whole_s = facts.exchange_at_once_s
    if not lost or buckets is None or exchange_s is None or whole_s is None or len(buckets) < 3:
        return None
    if exchange_s < _WORSE * whole_s:
        return None
    wasted = lost * (1.0 - whole_s / exchange_s)
    return Finding(
        rule=RULE,
        term=COMMUNICATION,
        root=True,
        claim=f"Sending {len(buckets)} buckets takes {exchange_s * 1e3:.1f} ms; one bucket would take "
        f"{whole_s * 1e3:.1f} ms.",
        lost=wasted,
        share=wasted / facts.ranks,
        evidence=(
            Evidence(name="buckets", value=len(buckets), source="DDP"),
            Evidence(name="in buckets", value=exchange_s, unit="s", source="all-reduce curve of this run"),
            Evidence(name="at once", value=whole_s, unit="s", source="all-reduce curve of this run"),
        ),
        advice=advise_more(facts, "larger buckets", "bucket_cap_mb", 50.0),
    )
