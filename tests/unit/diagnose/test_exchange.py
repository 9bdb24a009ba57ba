"""The network by its measured exchange, held against what its hardware should deliver."""

import pytest

from scalescope.analysis.comm.expected import LOOPBACK, Expectable, Expected, UnknownRate
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.exchange import (
    has_enough_work,
    is_bound_by_network,
    is_latency,
    is_slow_network,
    is_slow_to_start,
    rate_of,
)
from scalescope.diagnose.facts import Facts
from tests.builders.facts import ON_GPUS, make_curve, make_facts

SIZE = 1 << 26  # a point of every curve here
PCIE = Expected(bytes_per_s=12e9, path="PCIe 3 ×16", source="somewhere")
CURVE = Expected(bytes_per_s=12e9, path="8×H200 SXM", source="somewhere", slow_factor=3.0)


def exchanging(
    bytes_per_s: float = 1e9,
    *,
    latency_s: float = 1e-5,
    ranks: int = 2,
    size: int = SIZE,
    changes: dict[str, object] | None = None,
    expected: Expectable | None = LOOPBACK,
    step_s: float = 0.1,
) -> Facts:
    return make_facts(
        {COMMUNICATION: 0.05},
        ranks=ranks,
        step_s=step_s,
        changes=changes,
        expected=expected,
        curve=make_curve(latency_s, bytes_per_s),
        gradient_bytes=size,
    )


def test_the_rate_is_bus_bandwidth() -> None:
    assert rate_of(exchanging(latency_s=0.0)) == pytest.approx(1e9)
    assert rate_of(exchanging(latency_s=0.0, ranks=4)) == pytest.approx(1.5e9)
    assert rate_of(exchanging(latency_s=0.0, changes={"comm_hook": "fp16"})) == pytest.approx(1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("bytes_per_s", "expected", "slow"),
    [
        (1.9e9, PCIE, True),
        (2.1e9, PCIE, False),
        (3.9e9, CURVE, True),
        (4.1e9, CURVE, False),
        (1e6, UnknownRate(missing="the cards"), None),
        (1e6, LOOPBACK, None),
        (1e6, None, None),
    ],
)
def test_a_network_is_slow_far_below_what_its_hardware_should_deliver(
    bytes_per_s: float, expected: Expectable | None, slow: bool | None
) -> None:
    assert is_slow_network(exchanging(bytes_per_s, changes=ON_GPUS, expected=expected)) is slow


@pytest.mark.parametrize(
    ("bytes_per_s", "expected", "bound"),
    [(1e9, LOOPBACK, False), (1.2e8, LOOPBACK, True), (1.2e8, PCIE, True), (1.2e8, None, True)],
)
def test_where_nothing_is_known_an_exchange_that_no_batch_could_hide_comes_first(
    bytes_per_s: float, expected: Expectable | None, bound: bool
) -> None:
    """A step of 100 ms, half of it compute; 67 MB take 67 or 560 ms."""
    assert is_bound_by_network(exchanging(bytes_per_s, expected=expected)) is bound


def test_a_network_that_delivers_what_it_should_does_not_come_first() -> None:
    usual = Expected(bytes_per_s=1.2e8, path="a network", source="somewhere")
    assert not is_bound_by_network(exchanging(1.2e8, expected=usual))
    link = Expected(bytes_per_s=12.5e6, path="the link of 100mbit", source="the emulated link")
    shaped = exchanging(12e6, changes={"link": "100mbit"}, expected=link)
    assert is_slow_network(shaped) and is_bound_by_network(shaped)
    fast = Expected(bytes_per_s=1.25e10, path="the link of 100gbit", source="the emulated link")
    assert is_slow_network(exchanging(1e9, changes={"link": "100gbit"}, expected=fast)) is None


@pytest.mark.parametrize(("step_s", "enough"), [(0.05 + 0.19, False), (0.05 + 0.21, True)])
def test_work_is_enough_at_three_times_the_exchange_however_long_both_are(
    step_s: float, enough: bool
) -> None:
    """An exchange of 67 ms, and the same a thousand times shorter."""
    assert has_enough_work(exchanging(1e9, step_s=step_s)) is enough
    short = make_facts(
        {COMMUNICATION: 0.05e-3}, step_s=step_s / 1e3, curve=make_curve(1e-8, 1e12), gradient_bytes=SIZE
    )
    assert has_enough_work(short) is enough
    assert has_enough_work(make_facts()) is None


@pytest.mark.parametrize(
    ("latency_s", "changes", "slow"), [(2e-4, ON_GPUS, False), (3e-4, ON_GPUS, True), (1.0, {}, False)]
)
def test_gpus_are_slow_to_start_three_times_above_published_systems_and_gloo_is_not_judged(
    latency_s: float, changes: dict[str, object], slow: bool
) -> None:
    assert is_slow_to_start(exchanging(latency_s=latency_s, changes=changes)) is slow


def test_it_is_latency_for_each_bucket_and_a_few_packets_never_wait_for_bandwidth() -> None:
    buckets = (1 << 12,) * 10
    many = make_facts(curve=make_curve(1e-3, 1e9), gradient_bytes=sum(buckets), bucket_bytes=buckets)
    assert many.exchange_s == pytest.approx(10 * 1e-3, rel=0.01)
    assert is_latency(many)
    slow = exchanging(1e6, latency_s=1e-5, size=12_000)
    assert is_latency(slow) and not is_slow_network(slow)
    assert not is_latency(exchanging(1e6, latency_s=1e-5, size=1 << 20))
    facts = exchanging(latency_s=0.01, size=1 << 12)
    assert is_latency(facts)
    assert not is_slow_network(facts)


def test_without_a_curve_only_gpus_have_a_latency_that_was_published() -> None:
    assert is_latency(make_facts({COMMUNICATION: 0.002}, step_s=0.01)) is None
    assert is_latency(make_facts({COMMUNICATION: 2e-4}, step_s=1e-3, changes=ON_GPUS)) is True
    assert is_latency(make_facts({COMMUNICATION: 3e-4}, step_s=1e-3, changes=ON_GPUS)) is False
    facts = make_facts()
    assert not is_slow_network(facts) and not is_slow_to_start(facts) and not is_latency(facts)
    assert not is_bound_by_network(facts)
