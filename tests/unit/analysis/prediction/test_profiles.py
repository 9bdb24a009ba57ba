"""Profiles of stored runs and at other batch sizes, and buckets as DDP forms them."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.profiles import (
    ExchangedBucket,
    Gradient,
    MeasuredProfile,
    RankProfile,
    Unit,
    buckets_of,
    profile_at,
    profiles_of,
)
from scalescope.errors import BadInput
from scalescope.results.result import Result
from tests.builders.commands import make_command
from tests.builders.profiled_launches import GRADIENTS, UNITS, profiled_launch, profiled_trial, run_of
from tests.builders.results import make_result

TRIAL = profiled_trial()
STEPS = [10.0] * 10


def only(*results: Result) -> MeasuredProfile:
    (profile,) = profiles_of(run_of(*results))
    return profile


def whole_s(measured: MeasuredProfile) -> float:
    profile = measured.profile
    passes_s = measured.micro_batches * (profile.forward_s + profile.backward_s)
    return profile.input_s + passes_s + profile.optimizer_s + profile.rest_s


def test_parts_are_scaled_to_the_step_without_hooks() -> None:
    measured = only(profiled_launch(TRIAL, [5.0] * 10))
    profile = measured.profile
    assert (profile.samples, profile.launches) == (10, 1)
    assert (profile.input_s, profile.forward_s, profile.backward_s) == (0.5, 1.0, 2.0)
    assert (profile.optimizer_s, profile.rest_s) == (1.0, 0.5)
    assert profile.compute_s == pytest.approx(5.0)
    assert profile.gradients == (Gradient(size_bytes=400, ready_s=0.5), Gradient(size_bytes=800, ready_s=2.0))
    assert profile.units == (
        Unit(name="0", parameter_bytes=800, forward_s=0.5, backward_s=1.0, activation_bytes=64),
        Unit(name="1", parameter_bytes=400, forward_s=0.25, backward_s=0.5, activation_bytes=32),
    )


def test_on_the_cpu_the_timed_steps_know_their_parts() -> None:
    host = {"host__input_s": 1.0, "host__forward_s": 3.0, "host__backward_s": 2.0, "host__optimizer_s": 3.5}
    profile = only(profiled_launch(TRIAL, STEPS, **host)).profile
    assert (profile.input_s, profile.forward_s, profile.backward_s, profile.optimizer_s) == (1, 3, 2, 3.5)
    assert profile.rest_s == pytest.approx(0.5)
    assert [gradient.ready_s for gradient in profile.gradients] == [0.5, 2.0]


def test_the_host_runs_ahead_of_a_gpu() -> None:
    host = {"host__input_s": 0.0, "host__forward_s": 0.1, "host__backward_s": 0.1, "host__optimizer_s": 0.1}
    result = profiled_launch(TRIAL.replace(device="cuda"), STEPS, **host, peak_memory_bytes=7)
    measured = only(result, dataclasses.replace(result, launch=1))
    assert measured.profile.forward_s == 2.0
    assert measured.memory_bytes == 7


def test_a_gpu_that_waits_for_its_host_keeps_its_own_pace() -> None:
    trial = TRIAL.replace(device="cuda")
    waiting = only(profiled_launch(trial, [20.0] * 10, profile__at_gpu_pace=1)).profile
    assert (waiting.forward_s, waiting.backward_s, waiting.rest_s) == (2.0, 4.0, 0.0)
    assert waiting.issue_s == waiting.compute_s == 20.0
    busy = only(profiled_launch(trial, [10.4] * 10, profile__at_gpu_pace=1)).profile
    assert busy.issue_s == 0.0
    assert busy.forward_s == pytest.approx(2.08)
    unknown = only(profiled_launch(trial, [20.0] * 10)).profile  # the host had no head start
    assert (unknown.forward_s, unknown.issue_s) == (4.0, 0.0)


def test_passes_are_of_one_micro_batch() -> None:
    launch = profiled_launch(
        profiled_trial(accumulation_steps=2, batch_size=8), [16.0] * 10, profile__micro_batches=2
    )
    measured = only(launch)
    assert (measured.micro_batches, measured.profile.samples) == (2, 8)
    assert whole_s(measured) == pytest.approx(16.0)
    assert measured.profile.forward_s == 2.0


def test_launches_are_joined_by_what_they_share() -> None:
    swapped = [
        {"parameter": 0, "size_bytes": 800, "ready_s": 0.5},
        {"parameter": 1, "size_bytes": 400, "ready_s": 3.0},
    ]
    first, second = (
        profiled_launch(TRIAL, [9.0] * 10),
        profiled_launch(TRIAL, [11.0] * 10, launch=1, gradients=swapped),
    )
    measured = only(first, second)
    profile = measured.profile
    assert whole_s(measured) == pytest.approx(10.0)
    assert [gradient.size_bytes for gradient in profile.gradients] == [400, 800]
    assert [gradient.ready_s for gradient in profile.gradients] == [
        pytest.approx(2.0),
        pytest.approx(4.0 * (1.0 + 0.125) / 2),
    ]
    assert profile.launches == 2
    assert profile.launch_spread == pytest.approx(2.0**0.5 / 10.0)
    profile = only(
        profiled_launch(TRIAL, STEPS), profiled_launch(TRIAL, STEPS, launch=1, gradients=GRADIENTS[:1])
    ).profile
    assert profile.gradient_bytes == 400


def test_units_that_launches_do_not_share_are_left_out() -> None:
    for others in ((), UNITS[:2]):
        second = profiled_launch(TRIAL, STEPS, launch=1, units=others)
        assert only(profiled_launch(TRIAL, STEPS), second).profile.units == ()


def test_the_spread_leaves_out_single_long_steps() -> None:
    calm = [9.9, 10.1] * 99
    profile = only(profiled_launch(TRIAL, [*calm, 500.0, 500.0])).profile
    assert 0.005 < profile.spread < 0.02


def test_the_profile_of_a_command_is_of_a_micro_batch() -> None:
    assert only(profiled_launch(TRIAL, STEPS, buffer_bytes=5)).profile.buffer_bytes == 5
    counted = {"profile__buffer_bytes": 9, "profile__micro_batches": 4}
    measured = only(profiled_launch(make_command(observed_batch_size=32), STEPS, units=(), **counted))
    assert measured.profile.buffer_bytes == 9
    assert (measured.profile.samples, measured.micro_batches) == (8, 4)


def test_which_launches_have_a_profile() -> None:
    wrapped = profiled_trial(strategy="ddp", world_size=1)
    launches = profiled_launch(wrapped, STEPS), profiled_launch(TRIAL, STEPS)
    assert [measured.trial.strategy for measured in profiles_of(run_of(*launches))] == ["single", "ddp"]
    disturbed = dataclasses.replace(
        profiled_launch(TRIAL, [30.0] * 10), telemetry={"load": {"cores": 2, "stolen_cores": 1.0}}
    )
    assert whole_s(only(disturbed)) == pytest.approx(30.0)
    assert whole_s(only(disturbed, profiled_launch(TRIAL, STEPS, launch=1))) == pytest.approx(10.0)
    failed = dataclasses.replace(profiled_launch(TRIAL, STEPS), status="failed")
    old = make_result(TRIAL, [STEPS])
    ablated = profiled_launch(TRIAL.replace(without_optimizer=True), STEPS)
    two = profiled_launch(TRIAL.replace(world_size=2), STEPS)
    assert profiles_of(run_of(failed, old, ablated, two)) == ()


# other batch sizes


def measured_at(samples: int, backward_s: float, **changes: object) -> MeasuredProfile:
    """Backward takes that long, forward half of it."""
    profile = RankProfile(
        samples=samples,
        input_s=0.1 * samples,
        forward_s=backward_s / 2,
        backward_s=backward_s,
        optimizer_s=3.0,
        rest_s=0.25,
        gradients=(
            Gradient(size_bytes=4, ready_s=backward_s / 4),
            Gradient(size_bytes=8, ready_s=backward_s),
        ),
        units=(
            Unit(
                name="0",
                parameter_bytes=12,
                forward_s=backward_s / 2,
                backward_s=backward_s,
                activation_bytes=samples,
            ),
        ),
        buffer_bytes=2,
    )
    return MeasuredProfile(trial=profiled_trial(batch_size=samples, **changes), profile=profile)


SMALL, LARGE = measured_at(10, 3.0), measured_at(20, 5.0)  # 1 s and 0.2 s per sample


def test_a_measured_batch_is_as_it_was_and_others_lie_on_a_line() -> None:
    answer = profile_at([SMALL, LARGE], 20)
    assert (answer.profile, answer.assumptions) == (LARGE.profile, ())
    answer = profile_at([LARGE, SMALL], 14)
    profile = answer.profile
    assert answer.assumptions == ()
    assert (profile.samples, profile.optimizer_s, profile.rest_s, profile.buffer_bytes) == (14, 3.0, 0.25, 2)
    assert (profile.input_s, profile.forward_s, profile.backward_s) == (
        pytest.approx(1.4),
        pytest.approx(1.9),
        pytest.approx(3.8),
    )
    assert [gradient.ready_s for gradient in profile.gradients] == [pytest.approx(0.95), pytest.approx(3.8)]
    assert profile.gradient_bytes == 12
    (unit,) = profile.units
    assert (unit.forward_s, unit.backward_s) == (pytest.approx(1.9), pytest.approx(3.8))
    assert unit.activation_bytes == 14
    other = measured_at(40, 100.0, strategy="ddp", world_size=1)
    assert profile_at([SMALL, LARGE, other], 40) == profile_at([SMALL, LARGE], 40)


def test_beyond_measured_batches_a_line_or_proportion_is_an_assumption() -> None:
    answer = profile_at([SMALL, LARGE], 40)
    assert answer.profile.backward_s == pytest.approx(9.0)
    assert answer.assumptions == (
        "step time grows with the batch outside 10 to 20 samples per rank as it does inside",
    )
    answer = profile_at([SMALL], 20)
    assert answer.profile.backward_s == pytest.approx(6.0)
    assert answer.profile.optimizer_s == 3.0
    assert answer.assumptions == (
        "step time is proportional to the batch: only 10 samples per rank were measured",
    )


def test_a_line_neither_falls_nor_becomes_negative() -> None:
    falling = profile_at([SMALL, measured_at(20, 2.0)], 40).profile
    assert falling.backward_s == pytest.approx(2.5)
    steep = profile_at([measured_at(10, 1.0), measured_at(20, 5.0)], 5).profile
    assert steep.backward_s == pytest.approx(0.5)
    idle = dataclasses.replace(SMALL, profile=dataclasses.replace(SMALL.profile, backward_s=0.0))
    assert profile_at([idle], 20).profile.gradients == idle.profile.gradients


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(BadInput, match="the run has no profile of one rank"):
        profile_at([], 4)
    with pytest.raises(BadInput, match="batch_size must be a positive integer, got 0"):
        profile_at([SMALL], 0)


# buckets


MIB = 1 << 20


def gradients(*sizes: int) -> list[Gradient]:
    return [Gradient(size_bytes=size, ready_s=float(number)) for number, size in enumerate(sizes)]


def test_the_first_bucket_is_small_where_no_cap_is_set() -> None:
    sizes = [bucket.size_bytes // MIB for bucket in buckets_of(gradients(*[4 * MIB] * 16), None)]
    assert sizes == [4, 28, 28, 4]
    sizes = [bucket.size_bytes // MIB for bucket in buckets_of(gradients(*[4 * MIB] * 16), 25)]
    assert sizes == [28, 28, 8]
    assert buckets_of(gradients(MIB, MIB, MIB), 2) == (
        ExchangedBucket(size_bytes=2 * MIB, ready_s=1.0),
        ExchangedBucket(size_bytes=MIB, ready_s=2.0),
    )


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50 * MIB), max_size=60), st.none() | st.floats(0.1, 100))
def test_no_byte_is_lost(sizes: list[int], cap: float | None) -> None:
    buckets = buckets_of(gradients(*sizes), cap)
    assert sum(bucket.size_bytes for bucket in buckets) == sum(sizes)
    assert [bucket.ready_s for bucket in buckets] == sorted(bucket.ready_s for bucket in buckets)
