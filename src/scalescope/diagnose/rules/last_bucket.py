"""Last bucket too large: it is sent when backward is over, and nothing is left to hide it."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise, fewer_bytes
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.network import is_latency
from scalescope.quantities import percent

RULE = "last bucket too large"
_MOST = 0.5  # of all gradients
_BACKWARD = 2.0 / 3.0  # of compute: a backward pass takes about twice as long as a forward pass


def rule(facts: Facts) -> Finding | Abstention | None:
    lost, buckets = facts.lost(COMMUNICATION), facts.bucket_bytes
    if not lost or not buckets or buckets[-1] < _MOST * sum(buckets) or is_latency(facts) is not False:
        return None
    if not facts.transfer_explains_wait:
        return None
    last, total = buckets[-1], sum(buckets)
    alone = _others_are_hidden(facts) and (
        len(buckets) > 1 or _could_be_hidden(facts) or _holds_giant(facts, last)
    )
    # What part of it smaller buckets could hide depends on when gradients are ready: at most half is claimed.
    hidden = lost if alone else lost * last / total / 2.0
    part = (
        "All gradients are in one"
        if len(buckets) == 1
        else f"{percent(last / total)} of the gradients are in the last"
    )
    return Finding(
        rule=RULE,
        term=COMMUNICATION,
        root=alone,
        claim=f"{part} bucket ({last / 1e6:.1f} MB), which is sent when the "
        "backward pass is over and no compute is left to hide it.",
        lost=hidden,
        share=hidden / facts.ranks,
        evidence=(
            Evidence(name="last bucket", value=last, unit="bytes", source="DDP"),
            Evidence(name="all buckets", value=total, unit="bytes", source="DDP"),
        ),
        advice=_advice(facts, last),
    )


def _others_are_hidden(facts: Facts) -> bool:
    """Whether all buckets before the last one travel while backward still computes."""
    compute_s = facts.compute_s
    times_s = facts.bucket_times_s
    return compute_s is not None and times_s is not None and sum(times_s[:-1]) < _BACKWARD * compute_s


def _could_be_hidden(facts: Facts) -> bool:
    """Whether backward takes longer than sending all gradients, if only they left earlier."""
    compute_s, exchange_s = facts.compute_s, facts.exchange_s
    return compute_s is not None and exchange_s is not None and exchange_s < _BACKWARD * compute_s


def _advice(facts: Facts, last: int) -> tuple[Advice, ...]:
    """Smaller buckets where they can be had."""
    if _holds_giant(facts, last):
        return fewer_bytes(facts)
    return advise(facts, "smaller buckets are sent earlier", "bucket_cap_mb")


def _holds_giant(facts: Facts, last: int) -> bool:
    """Whether a bucket is far above its cap, because one parameter in it is: parameters are never split."""
    cap = facts.trial.bucket_cap_mb
    return cap is not None and last > 1.1 * float(cap) * 2**20
