"""Profiles at other batch sizes: on a line through measured ones, in proportion to a single one."""

import dataclasses

import pytest

from scalescope.analysis.prediction.batch_lines import profile_at
from scalescope.analysis.prediction.profile import Gradient, RankProfile, Unit
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.errors import BadInput
from tests.builders.profiled_launches import profiled_trial


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
        "a step grows with its batch beyond 10 to 20 samples per rank as between them",
    )
    answer = profile_at([SMALL], 20)
    assert answer.profile.backward_s == pytest.approx(6.0)
    assert answer.profile.optimizer_s == 3.0
    assert answer.assumptions == (
        "a step grows in proportion to its batch: 10 samples per rank were measured",
    )


def test_a_line_neither_falls_nor_becomes_negative() -> None:
    falling = profile_at([SMALL, measured_at(20, 2.0)], 40).profile
    assert falling.backward_s == pytest.approx(2.5)
    steep = profile_at([measured_at(10, 1.0), measured_at(20, 5.0)], 5).profile
    assert steep.backward_s == pytest.approx(0.5)
    idle = dataclasses.replace(SMALL, profile=dataclasses.replace(SMALL.profile, backward_s=0.0))
    assert profile_at([idle], 20).profile.gradients == idle.profile.gradients


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(BadInput, match="no profile of one rank was measured"):
        profile_at([], 4)
    with pytest.raises(BadInput, match="batch_size must be a positive integer, got 0"):
        profile_at([SMALL], 0)
