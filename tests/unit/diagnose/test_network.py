"""The network by its measured exchange: slow, slow to start, or as such ranks usually have it."""

import dataclasses

import pytest

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.network import (
    is_latency,
    is_slow_network,
    is_slow_to_start,
    of_the_usual,
    rate_of,
)

from .made_facts import ON_GPUS, make_curve, make_facts

SIZE = 1 << 26  # a point of every curve here


def exchanging(
    bytes_per_s: float = 1e9,
    *,
    latency_s: float = 1e-5,
    ranks: int = 2,
    size: int = SIZE,
    changes: dict[str, object] | None = None,
) -> Facts:
    return make_facts(
        {COMMUNICATION: 0.05},
        ranks=ranks,
        changes=changes,
        curve=make_curve(latency_s, bytes_per_s),
        gradient_bytes=size,
    )


def test_the_rate_is_bus_bandwidth() -> None:
    assert rate_of(exchanging(latency_s=0.0)) == pytest.approx(1e9)
    assert rate_of(exchanging(latency_s=0.0, ranks=4)) == pytest.approx(1.5e9)


def test_a_hook_halves_the_bytes_and_not_the_rate() -> None:
    assert rate_of(exchanging(latency_s=0.0, changes={"comm_hook": "fp16"})) == pytest.approx(1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("bytes_per_s", "changes", "slow"),
    [(1.5e8, {}, True), (1.8e8, {}, False), (1.9e9, ON_GPUS, True), (2.1e9, ON_GPUS, False)],
)
def test_a_network_is_slow_six_times_below_the_usual(
    bytes_per_s: float, changes: dict[str, object], slow: bool
) -> None:
    assert is_slow_network(exchanging(bytes_per_s, changes=changes)) is slow


def test_exchanges_that_only_pay_for_their_start_do_not_make_a_network_slow() -> None:
    facts = exchanging(latency_s=0.01, size=1 << 12)
    assert is_latency(facts)
    assert not is_slow_network(facts)


def test_an_unmeasured_network_is_not_slow() -> None:
    facts = make_facts()
    assert not is_slow_network(facts) and not is_slow_to_start(facts) and not is_latency(facts)


@pytest.mark.parametrize(
    ("latency_s", "changes", "slow"),
    [(2e-3, {}, False), (4e-3, {}, True), (2e-4, ON_GPUS, False), (4e-4, ON_GPUS, True)],
)
def test_a_network_is_slow_to_start_three_times_above_the_usual(
    latency_s: float, changes: dict[str, object], slow: bool
) -> None:
    assert is_slow_to_start(exchanging(latency_s=latency_s, changes=changes)) is slow


def test_it_is_latency_for_each_bucket_and_not_for_all_together() -> None:
    buckets = (1 << 12,) * 10
    many = make_facts(curve=make_curve(1e-3, 1e9), gradient_bytes=sum(buckets), bucket_bytes=buckets)
    assert many.exchange_s == pytest.approx(10 * 1e-3, rel=0.01)
    assert is_latency(many)


def test_without_a_curve_latency_is_what_such_ranks_usually_have() -> None:
    assert is_latency(make_facts({COMMUNICATION: 0.002}, step_s=0.05))
    assert not is_latency(make_facts({COMMUNICATION: 0.004}, step_s=0.05))


@pytest.mark.parametrize(
    ("changes", "path"), [({}, "gloo over loopback"), (ON_GPUS, "PCIe 3 ×16")], ids=["cpu", "cuda"]
)
def test_the_rate_is_shown_as_a_share_of_a_well_known_path(changes: dict[str, object], path: str) -> None:
    usual = 1e9 if not changes else 12e9
    text = of_the_usual(exchanging(usual / 4, latency_s=0.0, changes=changes))
    assert text == f"25% of what {path} carries"


def test_ranks_on_several_nodes_are_held_against_a_network_between_machines() -> None:
    here = exchanging(2e8, latency_s=0.0)
    apart = dataclasses.replace(here, hosts=("n1", "n2"))
    assert of_the_usual(here) == "20% of what gloo over loopback carries"
    assert of_the_usual(apart) == "16% of what 10 Gbit/s Ethernet carries"
    assert not is_slow_network(here) and is_slow_network(apart)
    same = dataclasses.replace(here, hosts=("n1", "n1"))
    assert of_the_usual(same) == of_the_usual(here)


def test_a_few_packets_never_wait_for_bandwidth() -> None:
    slow = exchanging(1e6, latency_s=1e-5, size=12_000)
    assert is_latency(slow) and not is_slow_network(slow)
    assert not is_latency(exchanging(1e6, latency_s=1e-5, size=1 << 20))
