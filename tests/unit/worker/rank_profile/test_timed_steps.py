"""The times of marked steps: parts, gradients of one micro-batch or of several losses, passes of units."""

from typing import Any

import pytest

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER, WHOLE_STEP
from scalescope.worker.rank_profile import (
    REST,
    Mark,
    MarkedStep,
    MarkKind,
    PassTimes,
    TimedStep,
    timed_step,
    typical_step,
)

GRADIENT = MarkKind.GRADIENT
BEGINS, ENDS = MarkKind.UNIT_BEGINS, MarkKind.UNIT_ENDS
OUTPUT, INPUT_GRADIENT = MarkKind.UNIT_OUTPUT_GRADIENT, MarkKind.UNIT_INPUT_GRADIENT


def make_step(step_s: float, *marks: tuple[float, str] | tuple[float, MarkKind, int]) -> MarkedStep:
    """A step of these marks; two values are a part."""
    return MarkedStep(
        marks=tuple(
            Mark(MarkKind.PART, mark[1], mark[0]) if len(mark) == 2 else Mark(mark[1], mark[2], mark[0])
            for mark in ((0.0, REST), *marks)
        ),
        step_s=step_s,
    )


PLAIN = make_step(
    20.0,
    (1.0, INPUT),
    (3.0, FORWARD),
    (6.0, BACKWARD),
    (8.0, GRADIENT, 1),
    (11.0, GRADIENT, 0),
    (12.0, OPTIMIZER),
    (15.0, CLEAR),
)


def test_parts_and_gradients_of_a_plain_step() -> None:
    step = timed_step(PLAIN, 1)
    assert (step.input_s, step.forward_s, step.backward_s, step.optimizer_s, step.rest_s) == (2, 3, 6, 8, 1)
    assert step.gradients_s == {1: 2.0, 0: 5.0}
    assert step.units == {}


@pytest.mark.parametrize("known", [2, None])
def test_passes_are_of_one_micro_batch_and_gradients_of_the_last(known: int | None) -> None:
    accumulated = make_step(
        30.0,
        (1.0, FORWARD),
        (3.0, BACKWARD),
        (4.0, GRADIENT, 1),
        (7.0, GRADIENT, 0),
        (9.0, FORWARD),
        (13.0, BACKWARD),
        (16.0, GRADIENT, 1),
        (20.0, GRADIENT, 0),
        (21.0, OPTIMIZER),
    )
    step = timed_step(accumulated, known)
    assert (step.micro_batches, step.forward_s, step.backward_s) == (2, 3.0, 7.0)
    assert step.gradients_s == {1: 3.0, 0: 7.0}


def test_gradients_of_several_losses_follow_each_other() -> None:
    two_losses = make_step(
        30.0,
        (0.0, WHOLE_STEP),
        (2.0, BACKWARD),
        (5.0, GRADIENT, 0),
        (6.0, WHOLE_STEP),
        (7.0, OPTIMIZER),
        (9.0, WHOLE_STEP),
        (10.0, BACKWARD),
        (12.0, GRADIENT, 0),
        (13.0, GRADIENT, 1),
        (14.0, WHOLE_STEP),
    )
    step = timed_step(two_losses)
    assert step.micro_batches == 1
    assert step.gradients_s == {0: 6.0, 1: 7.0}
    assert (step.forward_s, step.backward_s, step.optimizer_s) == (20.0, 8.0, 2.0)


def test_a_step_without_gradients_has_parts() -> None:
    step = timed_step(make_step(3.0, (1.0, FORWARD)))
    assert (step.forward_s, step.gradients_s, step.micro_batches) == (2.0, {}, 1)


def test_what_lies_between_units_belongs_to_the_one_before() -> None:
    marked = make_step(
        40.0,
        (1.0, FORWARD),
        (2.0, BEGINS, 0),
        (4.0, ENDS, 0),
        (5.0, BEGINS, 1),
        (9.0, ENDS, 1),
        (10.0, BACKWARD),
        (12.0, OUTPUT, 1),
        (15.0, GRADIENT, 2),
        (17.0, INPUT_GRADIENT, 1),
        (18.0, OUTPUT, 0),
        (19.0, GRADIENT, 1),
        (22.0, GRADIENT, 0),
        (25.0, GRADIENT, 3),  # of the root
        (30.0, OPTIMIZER),
    )
    step = timed_step(marked, 1, {0: 0, 1: 0, 2: 1})
    assert step.units == {
        0: PassTimes(forward_s=3.0, backward_s=5.0),
        1: PassTimes(forward_s=4.0, backward_s=5.0),
    }


_ONE_UNIT = ((0.0, FORWARD), (1.0, BEGINS, 0), (2.0, ENDS, 0))


@pytest.mark.parametrize(
    ("marks", "owners", "units"),
    [
        (  # with the gradient of a shared tensor one unit ends and another begins
            [
                (1.0, BACKWARD),
                (2.0, OUTPUT, 1),
                (4.0, GRADIENT, 1),
                (7.0, OUTPUT, 0),
                (7.0, INPUT_GRADIENT, 1),
                (9.0, GRADIENT, 0),
                (10.0, OPTIMIZER),
            ],
            {0: 0, 1: 1},
            {0: (0.0, 2.0), 1: (0.0, 5.0)},
        ),
        (  # a unit ends where another begins at the latest: its input was used elsewhere, too
            [
                (1.0, BACKWARD),
                (2.0, OUTPUT, 1),
                (5.0, OUTPUT, 0),
                (7.0, GRADIENT, 0),
                (9.0, INPUT_GRADIENT, 1),
                (10.0, OPTIMIZER),
            ],
            {0: 0},
            {0: (0.0, 2.0), 1: (0.0, 3.0)},
        ),
        (  # a unit that is called twice is timed twice
            [
                *_ONE_UNIT,
                (3.0, BEGINS, 0),
                (5.0, ENDS, 0),
                (6.0, BACKWARD),
                (7.0, OUTPUT, 0),
                (9.0, INPUT_GRADIENT, 0),
                (9.0, OUTPUT, 0),
                (14.0, GRADIENT, 0),
                (15.0, OPTIMIZER),
            ],
            {0: 0},
            {0: (4.0, 7.0)},
        ),
        (  # what is computed again in the backward pass is not forward
            [*_ONE_UNIT, (6.0, BACKWARD), (7.0, BEGINS, 0), (9.0, ENDS, 0), (15.0, OPTIMIZER)],
            {0: 0},
            {0: (1.0, 0.0)},
        ),
    ],
)
def test_passes_of_units(marks: Any, owners: dict[int, int], units: dict[int, tuple[float, float]]) -> None:
    timed = timed_step(make_step(20.0, (0.0, FORWARD), *marks), 1, owners).units
    assert {number: (unit.forward_s, unit.backward_s) for number, unit in timed.items()} == units


def make_timed(forward_s: float, gradients_s: dict[int, float]) -> TimedStep:
    return TimedStep(parts_s={FORWARD: forward_s}, step_s=2 * forward_s, gradients_s=gradients_s)


def test_medians_are_taken_and_gradients_sorted_by_their_time() -> None:
    steps = [
        make_timed(1.0, {0: 3.0, 1: 1.0, 2: 2.0}),
        make_timed(9.0, {0: 3.5, 1: 9.0, 2: 2.5}),
        make_timed(2.0, {0: 4.0, 1: 1.5, 2: 2.0}),
    ]
    step = typical_step(steps)
    assert (step.forward_s, step.step_s) == (2.0, 4.0)
    assert list(step.gradients_s.items()) == [(1, 1.5), (2, 2.0), (0, 3.5)]


def test_a_gradient_that_is_sometimes_missing_is_left_out() -> None:
    assert typical_step([make_timed(1.0, {0: 2.0, 1: 1.0}), make_timed(1.0, {0: 2.0})]).gradients_s == {
        0: 2.0
    }
