"""The network by the measured exchange: low bandwidth, or only high latency."""

from scalescope.diagnose.facts import Facts

# What a network should carry between ranks before it is blamed, in bytes/s: gloo over loopback reaches 1 to
# 2 GB/s on the machines in docs/measurements, and PCIe 3 ×16, the slowest usual path between GPUs, 12 GB/s.
# Between nodes it is what the slowest card of a machine room for CPUs, or for GPUs, carries.
_USUAL = {
    ("cpu", False): (1e9, "gloo over loopback"),
    ("cuda", False): (12e9, "PCIe 3 ×16"),
    ("cpu", True): (1.25e9, "10 Gbit/s Ethernet"),
    ("cuda", True): (12.5e9, "a 100 Gbit/s network"),
}
ENOUGH_COMPUTE_S = 0.03  # beside an exchange: it usually hides one
_SLOW = 6.0  # times below that
_MOSTLY_LATENCY = 3.0
_FEW_BYTES = 1 << 14  # a dozen packets: whatever they take, it is not for their bytes
_USUAL_LATENCY_S = {"cpu": 1e-3, "cuda": 1e-4}  # of an exchange, where none was measured


def rate_of(facts: Facts) -> float:
    """Bus bandwidth of an exchange of all gradients."""
    assert facts.exchange_s is not None and facts.sent_bytes is not None
    factor = 2.0 * (facts.ranks - 1) / facts.ranks
    return factor * facts.sent_bytes / facts.exchange_s


def is_slow_network(facts: Facts) -> bool:
    """Whether the exchange runs far below what such ranks usually reach."""
    if facts.exchange_s is None or facts.gradient_bytes is None or is_latency(facts):
        return False
    return rate_of(facts) < _usual(facts)[0] / _SLOW


def is_slow_to_start(facts: Facts) -> bool:
    """Whether even the smallest exchange takes far longer than it usually does."""
    usual_s = _USUAL_LATENCY_S[facts.trial.device]
    return facts.latency_s is not None and facts.latency_s > _MOSTLY_LATENCY * usual_s


def of_the_usual(facts: Facts) -> str:
    """The rate as a share of what such ranks usually reach, in words."""
    rate, path = _usual(facts)
    share = rate_of(facts) / rate
    return f"{share:.0%} of what {path} carries" if share < 0.9 else f"what {path} usually carries"


def _usual(facts: Facts) -> tuple[float, str]:
    return _USUAL[facts.trial.device, facts.nodes > 1]


def is_latency(facts: Facts) -> bool:
    """Whether exchanges take little longer than the smallest one does."""
    exchange_s = facts.exchange_s
    latency_s = facts.latency_s or _USUAL_LATENCY_S[facts.trial.device]
    if exchange_s is None:
        return False
    if facts.sent_bytes is not None and facts.sent_bytes < _FEW_BYTES:
        return True
    return exchange_s / len(facts.bucket_bytes or (1,)) < _MOSTLY_LATENCY * latency_s
