"""What is fitted to steps of several ranks."""

import dataclasses

import pytest

from scalescope.analysis.prediction.profiles import Gradient, RankProfile, profiles_of
from scalescope.analysis.prediction.setup import Fitted, Setup
from scalescope.analysis.prediction.simulation import (
    MeasuredStep,
    contention_of,
    fit,
    fitted_of,
    simulate,
    simulate_once,
)
from scalescope.experiment.explanations import single_rank_baseline
from tests.builders.profiled_launches import profiled_launch, run_of
from tests.builders.profiles import MIB, PerMib
from tests.builders.results import make_result, make_trial

PROFILE = RankProfile(
    samples=8,
    input_s=0.0,
    forward_s=0.02,
    backward_s=0.04,
    optimizer_s=0.005,
    gradients=tuple(Gradient(size_bytes=MIB, ready_s=0.01 * number) for number in (1, 2, 3, 4)),
)


def measured(truth: Fitted, seconds_per_mib: float, **settings: object) -> MeasuredStep:
    """A step as it would be measured if the truth were so."""
    setup = dataclasses.replace(Setup(world_size=2, backend="gloo", bucket_cap_mb=1), **settings)  # type: ignore[arg-type]
    times = PerMib(seconds_per_mib)
    step_s = simulate(PROFILE, times, setup, truth).step_s
    return MeasuredStep(profile=PROFILE, times=times, setup=setup, step_s=step_s)


def predicted_s(step: MeasuredStep, fitted: Fitted) -> float:
    return simulate_once(step.profile, step.times, step.setup, fitted).step_s


def test_contention_is_compute_on_several_ranks_over_compute_on_one() -> None:
    step = dataclasses.replace(measured(Fitted(), 0.001), silent_step_s=1.25 * PROFILE.compute_s)
    assert contention_of(step) == pytest.approx(1.25)
    assert fit([step]).contention == {2: pytest.approx(1.25)}
    assert fit([measured(Fitted(), 0.001)]).contention == {}
    assert fit(()) == Fitted()


def test_few_steps_say_what_their_hook_costs() -> None:
    step = measured(Fitted(fp16_s_per_byte=1e-8), 0.002, bucket_cap_mb=1, comm_hook="fp16")
    fitted = fit([step])
    assert fitted.fp16_s_per_byte == pytest.approx(1e-8, rel=0.1)
    assert fitted == Fitted(fp16_s_per_byte=fitted.fp16_s_per_byte, from_launches=1)
    truth = Fitted(fp16_s_per_byte=2e-8)
    plain, hooked = measured(truth, 0.001), measured(truth, 0.001, comm_hook="fp16")
    assert hooked.step_s > 1.1 * plain.step_s
    for steps in ([hooked], [plain, plain, hooked]):
        fitted = fit(steps)
        assert predicted_s(hooked, fitted) == pytest.approx(hooked.step_s, rel=0.02)
        assert predicted_s(plain, fitted) == pytest.approx(plain.step_s, rel=0.02)


def test_what_hardly_helps_or_was_not_measured_stays_unknown() -> None:
    # A parameter that a step does not show would be fitted to noise.
    steps = [measured(Fitted(), seconds, bucket_cap_mb=1) for seconds in (0.002, 0.01, 0.03)]
    noisy = [dataclasses.replace(step, step_s=step.step_s * 1.002) for step in steps]
    assert fit(noisy) == Fitted(from_launches=3)
    steps = [measured(Fitted(), 0.002, bucket_cap_mb=cap) for cap in (1, 2, 3, 5)]
    fitted = fit(steps)
    assert fitted.fp16_s_per_byte is None and fitted.bf16_s_per_byte is None


def test_each_exchange_with_a_hook_takes_longer() -> None:
    """Not by its bytes: the same gradients in seven buckets cost seven times as much as in one."""
    truth = Fitted(hook_s=0.003)
    known = [
        measured(truth, 0.01, bucket_cap_mb=cap, comm_hook=hook)
        for cap in (1, 50)
        for hook in ("none", "fp16")
    ]
    assert fit(known).hook_s == pytest.approx(0.003, rel=0.1)


def test_fitted_parameters_predict_other_steps() -> None:
    truth = Fitted(shared_latency=0.5, compute_s_per_byte=3e-9, busy_s_per_byte=1e-9)
    known = [
        measured(truth, seconds, bucket_cap_mb=cap) for seconds in (0.002, 0.01, 0.03) for cap in (1, 50)
    ]
    fitted = fit(known)
    other = measured(truth, 0.006, bucket_cap_mb=2, accumulation_steps=2)
    assert predicted_s(other, fitted) == pytest.approx(other.step_s, rel=0.03)
    unfitted = predicted_s(other, Fitted())
    assert abs(predicted_s(other, fitted) - other.step_s) < abs(unfitted - other.step_s)


def test_only_steps_over_the_same_link_count() -> None:
    """The times of collectives are those of one link."""
    plain, linked = (
        make_trial(strategy="ddp", world_size=2, steps_per_epoch="auto", link=link)
        for link in (None, "50mbit")
    )
    alone = profiled_launch(single_rank_baseline(plain), [10.0, 10.0])
    run = run_of(alone, *(make_result(trial, [[12.0, 12.0]] * 2) for trial in (plain, linked)))
    (profile,) = profiles_of(run)
    assert fitted_of(run, profile, PerMib(0.001)).from_launches == 1


def test_over_nccl_a_hook_costs_each_exchange_and_overlap_slows_compute() -> None:
    truth = Fitted(overlap_slowdown=0.25, hook_s=1e-3)
    hooks = ["none", "bf16"] * 3
    steps = [
        measured(truth, 0.004 * (1 + number), backend="nccl", comm_hook=hook)
        for number, hook in enumerate(hooks)
    ]
    fitted = fit(steps)
    assert fitted.hook_s == pytest.approx(1e-3, rel=0.2)
    assert fitted.overlap_slowdown == pytest.approx(0.25, abs=0.1)
    assert fitted.shared_latency is None and fitted.bf16_s_per_byte is None
