"""Model too small: it computes so little that starting an exchange costs as much."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise, batch_name
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Evidence, Finding
from scalescope.diagnose.network import has_enough_work, is_latency

RULE = "model too small for several ranks"
_SMALL_BYTES = 1_000_000  # DDP's first bucket holds all of it


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, compute_s, latency_s = facts.lost(COMMUNICATION), facts.compute_s, facts.latency_s
    if not lost or compute_s is None or latency_s is None or facts.gradient_bytes is None:
        return None
    if has_enough_work(facts) is not False or facts.gradient_bytes >= _SMALL_BYTES:
        return None
    if not is_latency(facts) or not facts.transfer_explains_wait:
        return None
    return Finding(
        rule=RULE,
        term=COMMUNICATION,
        root=True,
        claim=f"A step of this model ({facts.gradient_bytes / 1e3:,.0f} kB of parameters) computes for "
        f"{compute_s * 1e3:.2f} ms, and an exchange takes at least {latency_s * 1e3:.2f} ms.",
        lost=lost,
        share=lost / facts.ranks,
        evidence=(
            Evidence(name="gradients", value=facts.gradient_bytes, unit="bytes", source="the model"),
            Evidence(name="compute", value=compute_s, unit="s", source="one rank alone"),
            Evidence(name="latency", value=latency_s, unit="s", source="smallest all-reduce measured"),
        ),
        advice=(
            *advise(facts, "compute more per exchange", batch_name(facts)),
            *advise(facts, "exchange less often", "accumulation_steps"),
        ),
    )
