"""Whether two configurations train alike, by the losses of their launches."""

import dataclasses
import math
import random

import pytest

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.tuning.losses import (
    LossComparison,
    UnknownLoss,
    check_losses,
    loss_change,
    loss_of,
)
from tests.builders.commands import make_command
from tests.builders.results import make_configuration, make_trial


def with_losses(*losses: float, warmup: tuple[float, ...] | None = None, seed: int = 0) -> Configuration:
    """Two launches of a configuration, both with these losses."""
    configuration = make_configuration(make_trial(seed=seed), 0.010, 0.011)
    launches = tuple(
        dataclasses.replace(launch, losses=losses, warmup_losses=warmup) for launch in configuration.launches
    )
    return dataclasses.replace(configuration, launches=launches)


@pytest.mark.parametrize(
    ("before", "after", "change", "differs"),
    [
        ((9.0, 1.0, 1.0, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0, 1.0, 1.0), 0.0, False),  # the later half counts
        ((2.0,), (2.03,), 0.015, False),
        ((2.0,), (2.05,), 0.025, True),
        ((2.0,), (1.9,), -0.05, True),
        # A faster one makes more steps in the same time: only those both made are compared.
        ((2.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.1, 1.1, 0.5, 0.4, 0.3, 0.2), 0.1, True),
    ],
)
def test_the_loss_at_the_end_is_compared(
    before: tuple[float, ...], after: tuple[float, ...], change: float, differs: bool
) -> None:
    shown, is_other, unknown = loss_of(with_losses(*before), with_losses(*after, seed=1))
    assert unknown is None
    assert shown == pytest.approx(change)
    assert is_other is differs


@pytest.mark.parametrize(("before", "after"), [((), (1.0,)), ((1.0,), ()), ((0.0,), (1.0,))])
def test_an_unknown_loss_differs_from_nothing(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    assert loss_of(with_losses(*before), with_losses(*after, seed=1)) == LossComparison()


def _wandering(steps: int, seed: int) -> list[float]:
    """What rounding makes of losses that amplify it: neighbouring steps are alike."""
    noise = random.Random(seed)
    values = [0.0]
    for _ in range(steps - 1):
        values.append(0.9 * values[-1] + noise.gauss(0.0, 0.2))
    return values


def test_losses_that_wander_do_not_differ() -> None:
    before = [1.0] * 100
    refused = [
        loss_change(before, [1.0 + value for value in _wandering(100, seed)])[1] for seed in range(200)
    ]
    assert sum(refused) <= 20
    shifted = [[1.0 + value + 2.0 for value in _wandering(100, seed)] for seed in range(50)]
    assert sum(loss_change(before, losses)[1] for losses in shifted) >= 45


def test_a_loss_around_zero_is_compared_with_how_far_it_swings() -> None:
    before = [math.sin(step) for step in range(100)]
    change, differs = loss_change(before, [loss + 0.01 for loss in before])
    assert change == pytest.approx(0.014, abs=0.001)
    assert not differs
    assert loss_change(before, [loss + 0.1 for loss in before])[1]


def test_steps_are_counted_from_the_first_of_a_launch() -> None:
    # The second makes one step of warm-up more; its window begins one step later.
    first = with_losses(3.0, 2.0, 1.0, warmup=(4.0,))
    second = with_losses(2.0, 1.0, warmup=(4.0, 3.0), seed=1)
    assert loss_of(first, second) == LossComparison(0.0)
    steps = [1.0 + 0.2 * (-1) ** step for step in range(40)]
    assert loss_of(with_losses(*[1.0] * 40), with_losses(*steps, seed=1))[1] is False


# scripts


def of_script(*losses: tuple[float, ...], seeded: bool | None = True, bad: bool = False) -> Configuration:
    """A launch of a script for each of these losses."""
    configuration = make_configuration(make_command(), *[0.010] * max(1, len(losses)))
    launches = tuple(
        dataclasses.replace(launch, losses=values, is_seeded=seeded, has_bad_loss=bad)
        for launch, values in zip(configuration.launches, losses or ((),), strict=True)
    )
    return dataclasses.replace(configuration, launches=launches)


STEPS = (4.0, 3.0, 2.0, 2.0)
SLIGHTLY = (4.0001, 3.0, 2.0, 2.0)  # by another order of sums
OTHER = (4.0, 3.01, 2.02, 1.98)


@pytest.mark.parametrize(
    ("baseline", "unknown"),
    [
        (of_script(STEPS), None),
        (of_script(STEPS, seeded=False), "not seeded"),
        (of_script(STEPS, seeded=None), "not seeded"),
        (of_script(STEPS, SLIGHTLY, seeded=False), None),  # launches that repeat each other are evidence
        (of_script(STEPS, SLIGHTLY, OTHER), "not repeated"),
        (of_script(STEPS, OTHER, seeded=False), "not seeded"),
        (of_script(), "not seen"),
        (of_script(STEPS, bad=True), "not finite"),
    ],
)
def test_losses_of_a_script_are_compared_where_its_launches_train_alike(
    baseline: Configuration, unknown: UnknownLoss | None
) -> None:
    worse = of_script((4.0, 3.0, 4.0, 4.0))
    comparison = loss_of(baseline, worse)
    assert comparison.unknown == unknown
    assert comparison.differs is (unknown is None)
    assert (comparison.change is None) is (unknown is not None)


def test_a_loss_that_is_not_finite_differs_from_one_that_is() -> None:
    diverging = of_script((4.0,), bad=True)
    assert loss_of(of_script(STEPS, seeded=False), diverging) == LossComparison(differs=True)
    assert loss_of(of_script(STEPS, bad=True), diverging).differs is False


# two launches


FALLING = tuple(2.0 * math.exp(-step / 100.0) for step in range(200))


def test_losses_are_compared_over_the_steps_that_both_have() -> None:
    check = check_losses(200, FALLING, FALLING)
    assert (check.change, check.differs, check.refuses, check.last_steps) == (0.0, False, False, 50)
    check = check_losses(200, (), FALLING)
    assert (check.change, check.differs, check.last_steps) == (None, False, 0)
    check = check_losses(200, FALLING, FALLING[:100])
    assert (check.change, check.last_steps) == (0.0, 25)


def test_only_a_lasting_difference_at_the_end_counts() -> None:
    early = tuple(loss * (1.5 if step < 150 else 1.0) for step, loss in enumerate(FALLING))
    assert check_losses(200, FALLING, early).differs is False
    late = tuple(loss * (1.5 if step >= 150 else 1.0) for step, loss in enumerate(FALLING))
    check = check_losses(200, FALLING, late)
    assert check.change == pytest.approx(0.5)
    assert check.refuses
    assert not check_losses(200, FALLING, [loss * 1.015 for loss in FALLING]).differs
    assert check_losses(200, FALLING, [loss * 1.03 for loss in FALLING]).differs
    noisy = [loss * (2.0 if step % 2 else 0.1) for step, loss in enumerate(FALLING)]
    check = check_losses(200, FALLING, noisy)
    assert check.change is not None and abs(check.change) > 0.02
    assert not check.differs
