"""What limits the exchange of gradients: one decision, from the numbers of one configuration.

What a network should deliver comes from its hardware (`analysis.comm.expected`). Where that is unknown, as
for gloo inside a host, only the ratio of compute to exchange decides.
"""

from enum import StrEnum

from scalescope.analysis.comm.expected import Expected
from scalescope.diagnose.facts import Facts
from scalescope.hardware.published import published_latency_s

# Compute over exchange, from which on the exchange can hide: backward, two thirds of compute, is then twice
# as long as the exchange, so all but the last bucket hide though the first ones start late.
ENOUGH_WORK = 3.0
_HOPELESS = 10.0  # exchange over compute: thirty times the batch would be needed to hide it
_MOSTLY_LATENCY = 3.0
_FEW_BYTES = 1 << 14  # a dozen packets: whatever they take, it is not for their bytes
_OF_A_LINK = 0.5  # from there on an emulated link, and not what it runs on, decides
_SMALL_MODEL_BYTES = 1_000_000  # DDP's first bucket holds all of it
_WASTEFUL = 1.5  # times one exchange of everything
_NEARLY_ALL = 0.9  # of the exchange
_MOST = 0.5  # of all gradients
_BACKWARD = 2.0 / 3.0  # of compute: a backward pass takes about twice as long as a forward pass


class Cause(StrEnum):
    """What can limit the exchange, by the name of its finding."""

    NETWORK = "network slower than its hardware"
    BANDWIDTH = "communication-bound by bandwidth"
    LATENCY = "communication-bound by latency"
    SMALL_MODEL = "model too small for several ranks"
    SMALL_BUCKETS = "buckets too small"
    LAST_BUCKET = "last bucket too large"
    LITTLE_WORK = "too little work per exchange"


def causes_of(facts: Facts) -> tuple[Cause, ...]:
    """What limits the exchange: the cause first, then what else is true and worth showing after it."""
    if not facts.communication_lost:
        return ()
    measured, explained = facts.communication_is_measured, facts.transfer_explains_wait
    latency, bound = is_latency(facts), is_bound_by_network(facts)
    pays_latency = measured and explained and latency is True and facts.latency_s is not None
    known = facts.exchange_s is not None and facts.sent_bytes is not None
    pays_bytes = explained and latency is False and known
    is_slow = pays_bytes and facts.trial.link is None and is_slow_network(facts) is True
    wasted = wasted_by_buckets(facts) if measured else 0.0
    last = measured and explained and latency is False and _is_last_large(facts)
    only_last = last and is_only_last_exposed(facts)
    little_work = measured and explained and has_enough_work(facts) is False
    is_small = facts.gradient_bytes is not None and facts.gradient_bytes < _SMALL_MODEL_BYTES
    decision = (
        # Even the smallest exchange takes far longer than elsewhere, whatever is trained.
        (Cause.LATENCY, pays_latency and is_slow_to_start(facts)),
        # No setting but the batch changes that starting an exchange takes as long as computing.
        (Cause.SMALL_MODEL, pays_latency and little_work and is_small),
        # The network is slow, or no batch could hide it. An upper bound of the wait is too little to say so;
        # then the links that were found say it.
        (Cause.BANDWIDTH, pays_bytes and bound and measured),
        (Cause.NETWORK, is_slow),
        # Other buckets would hide the exchange. They cost nothing, and another batch is another job.
        (Cause.LAST_BUCKET, only_last),
        (Cause.SMALL_BUCKETS, wasted > _NEARLY_ALL),
        # The network is as it should be, and nothing more exact was found.
        (Cause.LITTLE_WORK, little_work and not (bound or pays_latency or only_last or wasted)),
        # Nothing but the network is left to blame.
        (Cause.LATENCY, pays_latency),
        (Cause.BANDWIDTH, pays_bytes),
        # Fixing these gains something, though not most of it.
        (Cause.SMALL_BUCKETS, wasted > 0.0),
        (Cause.LAST_BUCKET, last),
    )
    return tuple(dict.fromkeys(cause for cause, is_true in decision if is_true))


def rate_of(facts: Facts) -> float:
    """Bus bandwidth of an exchange of all gradients."""
    assert facts.exchange_s is not None and facts.sent_bytes is not None
    factor = 2.0 * (facts.ranks - 1) / facts.ranks
    return factor * facts.sent_bytes / facts.exchange_s


def is_slow_network(facts: Facts) -> bool | None:
    """Whether the exchange runs far below what the network should deliver, or a link was slowed on purpose;
    None where nothing says what it should deliver."""
    if facts.exchange_s is None or facts.gradient_bytes is None or is_latency(facts) is not False:
        return False
    if not isinstance(facts.expected, Expected):
        return None
    if facts.trial.link is not None:
        return rate_of(facts) > _OF_A_LINK * facts.expected.bytes_per_s or None
    return facts.expected.is_far_above(rate_of(facts))


def is_bound_by_network(facts: Facts) -> bool:
    """Whether the network comes first: it is slow, or, where that is unknown, no batch could hide it."""
    slow = is_slow_network(facts)
    if slow is not None:
        return slow
    compute_s, exchange_s = facts.compute_s, facts.exchange_s
    return compute_s is not None and exchange_s is not None and exchange_s > _HOPELESS * compute_s


def has_enough_work(facts: Facts) -> bool | None:
    """Whether compute could hide the exchange; None where one of them is unknown."""
    if facts.compute_s is None or facts.exchange_s is None:
        return None
    return facts.compute_s >= ENOUGH_WORK * facts.exchange_s


def is_slow_to_start(facts: Facts) -> bool:
    """Whether even the smallest exchange between GPUs takes far longer than on the published systems."""
    return (
        facts.trial.on_gpu
        and facts.latency_s is not None
        and facts.latency_s > _MOSTLY_LATENCY * published_latency_s()
    )


def is_latency(facts: Facts) -> bool | None:
    """Whether exchanges take little longer than the smallest one does; None where that was not measured.

    Between GPUs the published systems stand in for it.
    """
    exchange_s, latency_s = facts.exchange_s, facts.latency_s
    if exchange_s is None:
        return False
    if facts.sent_bytes is not None and facts.sent_bytes < _FEW_BYTES:
        return True
    if latency_s is None:
        latency_s = published_latency_s() if facts.trial.on_gpu else None
    if latency_s is None:
        return None
    return exchange_s / len(facts.bucket_bytes or (1,)) < _MOSTLY_LATENCY * latency_s


def wasted_by_buckets(facts: Facts) -> float:
    """The share of the exchange that one bucket would save; 0 where it is little or unknown."""
    buckets, exchange_s, at_once_s = facts.bucket_bytes, facts.exchange_s, facts.exchange_at_once_s
    if buckets is None or len(buckets) < 3 or exchange_s is None or at_once_s is None:
        return 0.0
    return 1.0 - at_once_s / exchange_s if exchange_s >= _WASTEFUL * at_once_s else 0.0


def _is_last_large(facts: Facts) -> bool:
    buckets = facts.bucket_bytes or (0,)
    return 0 < sum(buckets) <= buckets[-1] / _MOST


def is_only_last_exposed(facts: Facts) -> bool:
    """Whether all buckets before the last one travel while backward still computes, and it could as well, or
    no cap makes it smaller."""
    buckets, times_s, compute_s = facts.bucket_bytes, facts.bucket_times_s, facts.compute_s
    if not buckets or times_s is None or compute_s is None:
        return False
    backward_s = _BACKWARD * compute_s
    return sum(times_s[:-1]) < backward_s and (
        len(buckets) > 1 or sum(times_s) < backward_s or holds_giant(facts)
    )


def holds_giant(facts: Facts) -> bool:
    """Whether the last bucket is far above its cap, because one parameter in it is: they are never split."""
    cap, buckets = facts.trial.bucket_cap_mb, facts.bucket_bytes or (0,)
    return cap is not None and buckets[-1] > 1.1 * float(cap) * 2**20
