"""Profiles of stored runs: which launches count, parts that sum up to the measured step, joined launches."""

import dataclasses

import pytest

from scalescope.analysis.prediction.profile import Gradient, Unit
from scalescope.analysis.prediction.profiles import MeasuredProfile, profiles_of
from scalescope.results.result import Result
from tests.builders.commands import make_command
from tests.builders.profiled_launches import (
    GRADIENTS,
    UNITS,
    profiled_launch,
    profiled_trial,
    run_of,
)
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
    assert profile.gradients == (
        Gradient(size_bytes=400, ready_s=0.5),
        Gradient(size_bytes=800, ready_s=2.0),
    )
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
        profiled_trial(accumulation_steps=2, batch_size=8),
        [16.0] * 10,
        profile__micro_batches=2,
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
        profiled_launch(TRIAL, [30.0] * 10),
        telemetry={"load": {"cores": 2, "stolen_cores": 1.0}},
    )
    assert whole_s(only(disturbed)) == pytest.approx(30.0)
    assert whole_s(only(disturbed, profiled_launch(TRIAL, STEPS, launch=1))) == pytest.approx(10.0)
    failed = dataclasses.replace(profiled_launch(TRIAL, STEPS), status="failed")
    old = make_result(TRIAL, [STEPS])
    ablated = profiled_launch(TRIAL.replace(without_optimizer=True), STEPS)
    two = profiled_launch(TRIAL.replace(world_size=2), STEPS)
    assert profiles_of(run_of(failed, old, ablated, two)) == ()
