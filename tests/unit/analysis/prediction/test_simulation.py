"""simulate(): every strategy, one rank, many passes, and the network's part of the error."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.profiles import RankProfile
from scalescope.analysis.prediction.setup import Fitted, Setup
from scalescope.analysis.prediction.simulation import SIMULATORS, simulate
from scalescope.errors import BadInput
from tests.builders.profiles import PerMib, profile_of, profiles, unit

PROFILE = profile_of(*[unit("block", 1.0, 2.0, activation_mib=1.0)] * 4)
PARALLEL = [name for name in SIMULATORS if name != "single"]


def test_one_rank_exchanges_nothing_and_computes_all_micro_batches() -> None:
    for strategy in SIMULATORS:
        line = simulate(PROFILE, PerMib(1.0), Setup(world_size=1, strategy=strategy))
        assert line.step_s == pytest.approx(PROFILE.compute_s)
        assert {event.lane for event in line.events} == {"compute"}
    setup = Setup(world_size=1, strategy="pipeline", micro_batches=3)
    assert simulate(PROFILE, PerMib(1.0), setup).step_s == pytest.approx(PROFILE.compute_s + 2 * 12.0)


@pytest.mark.parametrize(
    ("strategy", "schedule"), [*((name, "1f1b") for name in PARALLEL), ("pipeline", "gpipe")]
)
def test_the_time_of_many_passes_is_that_of_all_of_them(strategy: str, schedule: str) -> None:
    """Only some are simulated, one by one; the others take as long."""
    blocks = (unit(f"block {n}", 0.1 * n, 0.3, mib=n, activation_mib=1.0) for n in range(1, 5))
    profile = dataclasses.replace(profile_of(*blocks), spread=0.1)
    setup = Setup(
        world_size=4, strategy=strategy, schedule=schedule, micro_batches=331, accumulation_steps=331
    )
    line = simulate(profile, PerMib(0.1, error=0.0), setup)
    whole = SIMULATORS[strategy](profile, PerMib(0.1, error=0.0), setup, Fitted())
    for name in ("step_s", "exposed_s", "bubble_s", "straggling_s"):
        assert getattr(line, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    assert len(line.events) < len(whole.events) / 2


def test_a_million_passes_are_not_a_million_events() -> None:
    line = simulate(PROFILE, PerMib(1.0), Setup(world_size=2, accumulation_steps=1_000_000))
    assert line.step_s == pytest.approx(1_000_000 * 12.0 + line.exposed_s + PROFILE.compute_s - 12.0)
    assert len(line.events) < 1_000


def test_every_strategy_passes_on_what_it_assumes_and_is_slowed_by_stragglers() -> None:
    uneven = dataclasses.replace(PROFILE, spread=0.1)
    for strategy in PARALLEL:
        setup = Setup(world_size=4, strategy=strategy, micro_batches=4)
        even = simulate(PROFILE, PerMib(1.0), setup)
        assert even.assumptions == ("as per MiB",)
        assert even.exposed_s > 0 and even.network_error > 0
        line = simulate(uneven, PerMib(1.0), setup)
        assert line.step_s == pytest.approx(even.step_s + line.straggling_s)
        assert line.straggling_s > 0
    with pytest.raises(BadInput, match="ddp, zero1"):
        simulate(PROFILE, PerMib(1.0), Setup(world_size=2, strategy="ring"))


def test_an_error_of_the_network_counts_where_it_is_or_may_become_exposed() -> None:
    setup = Setup(world_size=2, bucket_cap_mb=1)
    line = simulate(PROFILE, PerMib(1.0, error=0.2), setup)
    assert line.network_error == pytest.approx(0.2 * line.exposed_s / line.step_s)
    assert simulate(PROFILE, PerMib(1.0, error=0.0), setup).network_error == 0.0
    # Exchanges of 1.9 s fit between gradients that come every 2 s; exchanges of 2.28 s do not.
    line = simulate(PROFILE, PerMib(1.9, error=0.2), Setup(world_size=2, bucket_cap_mb=1))
    assert line.exposed_s == pytest.approx(1.9)
    assert line.network_error == pytest.approx((2.28 + 3 * 0.28 - 1.9) / line.step_s)


@settings(max_examples=40)
@given(
    profiles,
    st.sampled_from(PARALLEL),
    st.sampled_from(["nccl", "gloo"]),
    st.sampled_from([2, 4]),
    st.floats(0.0, 1.0),
    st.floats(1.0, 3.0),
)
def test_slower_networks_never_make_a_step_faster(
    profile: RankProfile, strategy: str, backend: str, ranks: int, per_mib: float, factor: float
) -> None:
    setup = Setup(world_size=ranks, strategy=strategy, backend=backend, micro_batches=4)
    line = simulate(profile, PerMib(per_mib), setup)
    assert simulate(profile, PerMib(per_mib * factor), setup).step_s >= line.step_s - 1e-6
    free = simulate(profile, PerMib(0.0), setup)
    assert line.step_s == pytest.approx(free.step_s + line.exposed_s)


def test_a_step_is_never_shorter_than_the_host_needs_to_issue_it() -> None:
    issued = dataclasses.replace(PROFILE, issue_s=10.0 * PROFILE.compute_s)
    setup = Setup(world_size=2, accumulation_steps=3)
    line = simulate(issued, PerMib(0.0), setup, Fitted(contention={2: 1.5}))
    assert line.step_s == line.host_s == pytest.approx(3 * 1.5 * issued.issue_s)
    network = PerMib(1e3)
    assert simulate(issued, network, setup).step_s == simulate(PROFILE, network, setup).step_s
    issued = dataclasses.replace(PROFILE, issue_s=1.1 * PROFILE.compute_s)
    network, setup, slower = PerMib(1e3), Setup(world_size=2), Fitted(contention={2: 2.0})
    assert simulate(issued, network, setup, slower).step_s == simulate(PROFILE, network, setup).step_s


def test_what_a_host_hides_is_not_exposed() -> None:
    network, setup = PerMib(0.1), Setup(world_size=2)
    plain = simulate(PROFILE, network, setup)
    between_s = plain.step_s - plain.exposed_s / 2.0
    line = simulate(dataclasses.replace(PROFILE, issue_s=between_s), network, setup)
    assert (line.step_s, line.host_s) == (plain.step_s, 0.0)
    assert line.exposed_s == pytest.approx(plain.exposed_s / 2.0)
