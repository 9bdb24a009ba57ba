"""The timeline of a data-parallel step."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.analysis.prediction.profile import Gradient, RankProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.analysis.prediction.timelines.data_parallel import simulate_data_parallel
from scalescope.analysis.prediction.timelines.lanes import expected_maximum
from tests.builders.profiles import MIB, PerMib, profiles

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


def test_only_the_last_exchange_is_exposed_where_they_are_short() -> None:
    line = simulated(0.5)
    assert line.step_s == pytest.approx(PROFILE.compute_s + 0.5)
    assert line.exposed_s == pytest.approx(0.5)


def test_exchanges_wait_for_each_other() -> None:
    line = simulated(2.0)
    sent = [event for event in line.events if event.lane == "communication"]
    assert [event.begin_s for event in sent] == [3.5, 5.5, 7.5, 9.5]
    assert line.exposed_s == pytest.approx(11.5 - 6.5)


def test_gloo_runs_two_at_a_time_that_share_the_link() -> None:
    line = simulated(2.0, dataclasses.replace(SETUP, backend="gloo"))
    sent = [event for event in line.events if event.lane == "communication"]
    assert [event.begin_s for event in sent] == [3.5, 4.5, 6.5, 8.5]
    assert line.step_s == pytest.approx(simulated(2.0).step_s)


def test_one_rank_exchanges_nothing() -> None:
    line = simulated(2.0, dataclasses.replace(SETUP, world_size=1))
    assert line.step_s == pytest.approx(PROFILE.compute_s)
    assert line.exposed_s == 0.0


def test_half_precision_halves_what_is_sent() -> None:
    line = simulated(2.0, dataclasses.replace(SETUP, comm_hook="bf16"))
    assert {event.size_bytes for event in line.events if event.lane == "communication"} == {MIB // 2}


def test_accumulation_exchanges_once() -> None:
    line = simulated(0.5, dataclasses.replace(SETUP, accumulation_steps=3))
    assert line.step_s == pytest.approx(PROFILE.compute_s + 2 * 6.0 + 0.5)
    assert sum(event.lane == "communication" for event in line.events) == 4


def test_buffers_are_sent_before_the_forward_pass() -> None:
    line = simulated(0.5, profile=dataclasses.replace(PROFILE, buffer_bytes=2 * MIB))
    assert [event.name for event in line.events[:3]] == ["input", "broadcast", "forward"]
    assert line.exposed_s == pytest.approx(1.5)


def test_compute_that_communication_slows_takes_longer() -> None:
    plain = simulated(1.0)
    slowed = simulated(1.0, fitted=Fitted(overlap_slowdown=0.5))
    backward = next(event for event in slowed.events if event.name == "backward")
    assert backward.end_s - backward.begin_s == pytest.approx(4.0 + 0.5 * 3.0)
    assert slowed.step_s > plain.step_s


def test_contention_slows_the_compute_of_that_many_ranks() -> None:
    slowed = simulated(0.0, fitted=Fitted(contention={2: 1.5}))
    assert slowed.step_s == pytest.approx(0.5 + 1.5 * 7.0)
    assert simulated(0.0, fitted=Fitted(contention={4: 1.5})).step_s == pytest.approx(7.5)


def test_the_slowest_of_many_ranks_is_waited_for() -> None:
    uneven = dataclasses.replace(PROFILE, spread=0.1)
    two = simulated(0.0, profile=uneven)
    many = simulated(0.0, dataclasses.replace(SETUP, world_size=64), profile=uneven)
    assert 0 < two.straggling_s < many.straggling_s


@pytest.mark.parametrize(("count", "value"), [(2, 0.56), (8, 1.42), (64, 2.34), (256, 2.83), (1024, 3.24)])
def test_the_expected_maximum_of_normal_values(count: int, value: float) -> None:
    assert expected_maximum(count) == pytest.approx(value, rel=0.06)


@given(
    st.lists(st.tuples(st.integers(1, 40 * MIB), st.floats(0, 4)), min_size=1, max_size=40),
    st.floats(0, 1),
    st.sampled_from(["gloo", "nccl"]),
    st.floats(0, 1),
)
def test_a_step_is_compute_and_what_is_exposed(
    parts: list[tuple[int, float]], seconds: float, backend: str, kappa: float
) -> None:
    ordered = sorted(parts, key=lambda part: part[1])
    profile = dataclasses.replace(
        PROFILE, gradients=tuple(Gradient(size_bytes=size, ready_s=ready) for size, ready in ordered)
    )
    setup = Setup(world_size=4, backend=backend)
    line = simulated(seconds, setup, profile, Fitted(overlap_slowdown=kappa))
    computed = sum(event.end_s - event.begin_s for event in line.events if event.lane == "compute")
    assert line.step_s == pytest.approx(computed + line.exposed_s)
    assert computed >= profile.compute_s - 1e-9
    total = sum(event.end_s - event.begin_s for event in line.events if event.lane == "communication")
    assert line.exposed_s <= total + 1e-9


def formula_s(profile: RankProfile, per_mib: float) -> float:
    """e_i = max(r_i, e_{i-1}) + C(S_i) and F + max(B, e_last) + O, with a bucket for each gradient."""
    end_s = 0.0
    for gradient in profile.gradients:
        end_s = max(gradient.ready_s, end_s) + per_mib * gradient.size_bytes / MIB
    return profile.input_s + profile.forward_s + max(profile.backward_s, end_s) + profile.optimizer_s


@given(profiles, st.floats(0, 2), st.integers(1, 4))
def test_the_closed_formula(profile: RankProfile, per_mib: float, accumulated: int) -> None:
    setup = Setup(world_size=4, bucket_cap_mb=1e-6, accumulation_steps=accumulated)
    more_s = (accumulated - 1) * (profile.forward_s + profile.backward_s)
    line = simulated(per_mib, setup, profile)
    assert line.step_s == pytest.approx(formula_s(profile, per_mib) + more_s)
    network_s = sum(event.end_s - event.begin_s for event in line.events if event.lane == "communication")
    assert line.step_s >= max(network_s, profile.compute_s) - 1e-6


@given(profiles, st.floats(0, 2), st.sampled_from(["gloo", "nccl"]))
def test_overlap_is_never_slower_than_none(profile: RankProfile, per_mib: float, backend: str) -> None:
    line = simulated(per_mib, Setup(world_size=4, backend=backend), profile)
    assert line.step_s <= profile.compute_s + per_mib * profile.gradient_bytes / MIB + 1e-6


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


def test_work_of_a_hook_is_exposed_only_in_part() -> None:
    whole = dataclasses.replace(SETUP, bucket_cap_mb=50, comm_hook="fp16")
    fitted = Fitted(fp16_s_per_byte=1.0 / MIB, bf16_s_per_byte=100.0 / MIB)
    longer_s = simulated(0.5, whole, fitted=fitted).step_s - simulated(0.5, whole).step_s
    assert longer_s == pytest.approx(0.5 * 2.0)  # half of the work on the 2 MiB that are sent


def test_buffers_are_not_sent_where_that_is_off() -> None:
    profile = dataclasses.replace(PROFILE, buffer_bytes=2 * MIB)
    quiet = dataclasses.replace(SETUP, broadcast_buffers=False)
    assert simulated(0.5, quiet, profile).exposed_s == pytest.approx(0.5)
