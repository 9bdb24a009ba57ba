"""The network by the measured exchange: low bandwidth, or only high latency.

What a network should deliver comes from its hardware (`analysis.comm.expected`). Where that is unknown, as
for gloo inside a host, only the ratio of compute to exchange decides.
"""

from scalescope.analysis.comm.expected import Expected
from scalescope.diagnose.facts import Facts
from scalescope.hardware.published import published_latency_s
from scalescope.quantities import percent

# Compute over exchange, from which on the exchange can hide: backward, two thirds of compute, is then twice
# as long as the exchange, so all but the last bucket hide though the first ones start late.
ENOUGH_WORK = 3.0
_HOPELESS = 10.0  # exchange over compute: thirty times the batch would be needed to hide it
_MOSTLY_LATENCY = 3.0
_FEW_BYTES = 1 << 14  # a dozen packets: whatever they take, it is not for their bytes
_OF_A_LINK = 0.5  # from there on an emulated link, and not what it runs on, decides


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


def of_the_expected(facts: Facts) -> str:
    """The rate as a share of what it should be, in words; empty where that is unknown."""
    if not isinstance(facts.expected, Expected):
        return ""
    share, path = rate_of(facts) / facts.expected.bytes_per_s, facts.expected.path
    return f", {percent(share)} of what {path} should carry" if share < 0.9 else f", what {path} should carry"


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
