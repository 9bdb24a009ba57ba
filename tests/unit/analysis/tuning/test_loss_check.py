"""The losses of two launches, compared over the last quarter of their steps."""

import math

import pytest

from scalescope.analysis.tuning.loss_check import check_losses

FALLING = tuple(2.0 * math.exp(-step / 100.0) for step in range(200))


def test_the_same_losses_do_not_differ() -> None:
    check = check_losses(200, FALLING, FALLING)
    assert (check.change, check.differs, check.refuses, check.last_steps) == (0.0, False, False, 50)


def test_only_the_end_counts() -> None:
    early = tuple(loss * (1.5 if step < 150 else 1.0) for step, loss in enumerate(FALLING))
    assert check_losses(200, FALLING, early).differs is False
    late = tuple(loss * (1.5 if step >= 150 else 1.0) for step, loss in enumerate(FALLING))
    check = check_losses(200, FALLING, late)
    assert check.change == pytest.approx(0.5)
    assert check.refuses


def test_small_differences_are_tolerated() -> None:
    assert not check_losses(200, FALLING, [loss * 1.015 for loss in FALLING]).differs
    assert check_losses(200, FALLING, [loss * 1.03 for loss in FALLING]).differs


def test_losses_that_differ_to_and_fro_do_not_differ() -> None:
    noisy = [loss * (2.0 if step % 2 else 0.1) for step, loss in enumerate(FALLING)]
    check = check_losses(200, FALLING, noisy)
    assert check.change is not None and abs(check.change) > 0.02
    assert not check.differs


def test_without_losses_nothing_is_known() -> None:
    check = check_losses(200, (), FALLING)
    assert (check.change, check.differs, check.last_steps) == (None, False, 0)


def test_of_launches_of_different_lengths_the_common_steps_are_compared() -> None:
    check = check_losses(200, FALLING, FALLING[:100])
    assert (check.change, check.last_steps) == (0.0, 25)
