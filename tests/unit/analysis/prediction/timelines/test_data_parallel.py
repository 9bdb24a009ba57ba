"""The timeline of a data-parallel step: exchanges in turn or side by side, DDP and ZeRO-1."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.collective_times import CollectiveTime
from scalescope.analysis.prediction.profiles import Gradient, RankProfile
from scalescope.analysis.prediction.setup import Fitted, Setup, StepTimeline
from scalescope.analysis.prediction.timelines import (
    Exchange,
    Sent,
    expected_maximum,
    largest_share,
    scheduled,
    simulate_data_parallel,
    simulate_zero1,
)
from tests.builders.profiles import MIB, PerMib, profile_of, profiles, unit


def exchange(ready_s: float, time_s: float, latency_s: float = 0.0) -> Exchange:
    return Exchange("all_reduce", 1, ready_s, CollectiveTime(time_s=time_s, latency_s=latency_s))


def spans(sent: tuple[Sent, ...]) -> list[tuple[float, float]]:
    return [(item.begin_s, item.end_s) for item in sent]


def test_nccl_takes_turns_and_gloo_shares_the_link() -> None:
    assert spans(scheduled([exchange(0, 2), exchange(1, 2), exchange(9, 1)], "nccl")) == [
        (0, 2),
        (2, 4),
        (9, 10),
    ]
    assert spans(scheduled([exchange(0, 2), exchange(0, 2)], "gloo")) == [(0, 4), (0, 4)]
    assert spans(scheduled([exchange(0, 4), exchange(0, 1), exchange(0, 1)], "gloo")) == [
        (0, 6),
        (0, 2),
        (2, 4),
    ]
    assert spans(scheduled([exchange(0, 2, latency_s=2), exchange(0, 2, latency_s=2)], "gloo")) == [
        (0, 2),
        (0, 2),
    ]
    assert scheduled([], "gloo") == ()
    assert spans(scheduled([exchange(1, 0)], "gloo")) == [(1, 1)]


parts = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0, 5), st.floats(0, 5)).map(
        lambda part: exchange(part[0], part[1] + part[2], latency_s=part[1])
    ),
    min_size=1,
    max_size=30,
).map(lambda items: sorted(items, key=lambda item: item.ready_s))


@settings(max_examples=40)
@given(parts)
def test_sharing_is_never_slower_than_turns_nor_faster_than_the_link(exchanges: list[Exchange]) -> None:
    turns, shared = scheduled(exchanges, "nccl"), scheduled(exchanges, "gloo")
    assert max(item.end_s for item in shared) <= max(item.end_s for item in turns) + 1e-6
    transfer_s = sum(item.time.time_s - item.time.latency_s for item in exchanges)
    assert max(item.end_s for item in shared) >= exchanges[0].ready_s + transfer_s - 1e-6
    for item in (*turns, *shared):
        assert item.begin_s >= item.exchange.ready_s
        assert item.end_s >= item.begin_s + item.exchange.time.time_s - 1e-6


@settings(max_examples=40)
@given(parts)
def test_without_latency_the_last_ends_when_it_would_in_turn(exchanges: list[Exchange]) -> None:
    busy = [
        dataclasses.replace(item, time=dataclasses.replace(item.time, latency_s=0.0)) for item in exchanges
    ]
    turns, shared = scheduled(busy, "nccl"), scheduled(busy, "gloo")
    assert max(item.end_s for item in shared) == pytest.approx(max(item.end_s for item in turns))


# DDP


PROFILE = RankProfile(
    samples=8,
    input_s=0.5,
    forward_s=2.0,
    backward_s=4.0,
    optimizer_s=1.0,
    gradients=tuple(Gradient(size_bytes=MIB, ready_s=ready) for ready in (1.0, 2.0, 3.0, 4.0)),
)
SETUP = Setup(world_size=2, bucket_cap_mb=1)


def simulated(
    seconds: float, setup: Setup = SETUP, profile: RankProfile = PROFILE, fitted: Fitted | None = None
) -> StepTimeline:
    return simulate_data_parallel(profile, PerMib(seconds), setup, fitted or Fitted())


def test_short_exchanges_are_hidden_but_for_the_last_and_long_ones_wait() -> None:
    line = simulated(0.5)
    assert line.step_s == pytest.approx(PROFILE.compute_s + 0.5)
    assert line.exposed_s == pytest.approx(0.5)
    line = simulated(2.0)
    sent = [event for event in line.events if event.lane == "communication"]
    assert [event.begin_s for event in sent] == [3.5, 5.5, 7.5, 9.5]
    assert line.exposed_s == pytest.approx(11.5 - 6.5)
    shared = simulated(2.0, dataclasses.replace(SETUP, backend="gloo"))
    sent = [event for event in shared.events if event.lane == "communication"]
    assert [event.begin_s for event in sent] == [3.5, 4.5, 6.5, 8.5]
    assert shared.step_s == pytest.approx(line.step_s)


def test_half_precision_halves_what_is_sent_and_accumulation_sends_once() -> None:
    line = simulated(2.0, dataclasses.replace(SETUP, comm_hook="bf16"))
    assert {event.size_bytes for event in line.events if event.lane == "communication"} == {MIB // 2}
    line = simulated(0.5, dataclasses.replace(SETUP, accumulation_steps=3))
    assert line.step_s == pytest.approx(PROFILE.compute_s + 2 * 6.0 + 0.5)
    assert sum(event.lane == "communication" for event in line.events) == 4


def test_buffers_are_sent_before_the_forward_pass_unless_that_is_off() -> None:
    line = simulated(0.5, profile=dataclasses.replace(PROFILE, buffer_bytes=2 * MIB))
    assert [event.name for event in line.events[:3]] == ["input", "broadcast", "forward"]
    assert line.exposed_s == pytest.approx(1.5)
    profile = dataclasses.replace(PROFILE, buffer_bytes=2 * MIB)
    quiet = dataclasses.replace(SETUP, broadcast_buffers=False)
    assert simulated(0.5, quiet, profile).exposed_s == pytest.approx(0.5)


def test_compute_that_communication_slows_takes_longer() -> None:
    plain = simulated(1.0)
    slowed = simulated(1.0, fitted=Fitted(overlap_slowdown=0.5))
    backward = next(event for event in slowed.events if event.name == "backward")
    assert backward.end_s - backward.begin_s == pytest.approx(4.0 + 0.5 * 3.0)
    assert slowed.step_s > plain.step_s


def test_contention_and_the_slowest_rank_lengthen_a_step() -> None:
    slowed = simulated(0.0, fitted=Fitted(contention={2: 1.5}))
    assert slowed.step_s == pytest.approx(0.5 + 1.5 * 7.0)
    assert simulated(0.0, fitted=Fitted(contention={4: 1.5})).step_s == pytest.approx(7.5)
    uneven = dataclasses.replace(PROFILE, spread=0.1)
    two = simulated(0.0, profile=uneven)
    many = simulated(0.0, dataclasses.replace(SETUP, world_size=64), profile=uneven)
    assert 0 < two.straggling_s < many.straggling_s


def test_the_expected_maximum_of_normal_values() -> None:
    for count, value in ((2, 0.56), (8, 1.42), (64, 2.34), (1024, 3.24)):
        assert expected_maximum(count) == pytest.approx(value, rel=0.06)


def formula_s(profile: RankProfile, per_mib: float) -> float:
    """e_i = max(r_i, e_{i-1}) + C(S_i) and F + max(B, e_last) + O, with a bucket for each gradient."""
    end_s = 0.0
    for gradient in profile.gradients:
        end_s = max(gradient.ready_s, end_s) + per_mib * gradient.size_bytes / MIB
    return profile.input_s + profile.forward_s + max(profile.backward_s, end_s) + profile.optimizer_s


@settings(max_examples=25)
@given(profiles, st.floats(0, 2), st.integers(1, 4))
def test_the_closed_formula(profile: RankProfile, per_mib: float, accumulated: int) -> None:
    setup = Setup(world_size=4, bucket_cap_mb=1e-6, accumulation_steps=accumulated)
    more_s = (accumulated - 1) * (profile.forward_s + profile.backward_s)
    line = simulated(per_mib, setup, profile)
    assert line.step_s == pytest.approx(formula_s(profile, per_mib) + more_s)
    network_s = sum(event.end_s - event.begin_s for event in line.events if event.lane == "communication")
    assert line.step_s >= max(network_s, profile.compute_s) - 1e-6


def test_exchanges_beside_compute_take_longer_and_slow_it() -> None:
    plain = simulated(0.5)
    slowed = simulated(0.5, fitted=Fitted(compute_s_per_byte=0.25 / MIB, busy_s_per_byte=0.25 / MIB))
    backward = next(event for event in slowed.events if event.name == "backward")
    # Three of four exchanges lie in the backward pass, the last begins with its end.
    assert backward.end_s - backward.begin_s == pytest.approx(4.0 + 3 * 0.25)
    first = next(event for event in slowed.events if event.lane == "communication")
    assert first.end_s - first.begin_s == pytest.approx(0.75)
    assert slowed.step_s == pytest.approx(plain.step_s + 3 * 0.25)


def test_what_is_exchanged_after_the_backward_pass_is_as_fast_as_alone() -> None:
    whole = dataclasses.replace(SETUP, bucket_cap_mb=50)
    fitted = Fitted(compute_s_per_byte=1.0 / MIB, busy_s_per_byte=1.0 / MIB, busy_latency=1.0)
    assert simulated(0.5, whole, fitted=fitted).step_s == pytest.approx(simulated(0.5, whole).step_s)
    hooked = dataclasses.replace(whole, comm_hook="fp16")
    fitted = Fitted(fp16_s_per_byte=1.0 / MIB, bf16_s_per_byte=100.0 / MIB)
    longer_s = simulated(0.5, hooked, fitted=fitted).step_s - simulated(0.5, hooked).step_s
    assert longer_s == pytest.approx(0.5 * 2.0)  # half of the work on the 2 MiB that are sent


# ZeRO-1


BLOCKS = profile_of(*[unit("block", 1.0, 2.0)] * 4, optimizer_s=2.0)
ZERO1 = Setup(world_size=2, strategy="zero1", bucket_cap_mb=1)


def test_half_of_the_update_and_then_all_parameters() -> None:
    line = simulate_zero1(BLOCKS, PerMib(0.5), ZERO1, Fitted())
    plain = simulate_data_parallel(BLOCKS, PerMib(0.5), ZERO1, Fitted())
    assert line.step_s == pytest.approx(plain.step_s - 1.0 + 4 * 0.5)
    assert [event.name for event in line.events if event.begin_s >= plain.step_s - 2.0] == [
        "optimizer",
        *["broadcast"] * 4,
    ]
    assert line.exposed_s == pytest.approx(plain.exposed_s + 4 * 0.5)
    line = simulate_zero1(BLOCKS, PerMib(0.5), dataclasses.replace(ZERO1, comm_hook="bf16"), Fitted())
    sizes = {event.name: event.size_bytes for event in line.events if event.lane == "communication"}
    assert sizes == {"all_reduce": MIB // 2, "broadcast": MIB}


def test_the_busiest_rank() -> None:
    cases = [([4, 3, 2, 1], 2, 0.5), ([9, 1], 2, 0.9), ([9, 1], 8, 0.9), ([], 4, 0.25), ([2, 2, 2], 2, 4 / 6)]
    for sizes, ranks, share in cases:
        assert largest_share(sizes, ranks) == pytest.approx(share)
