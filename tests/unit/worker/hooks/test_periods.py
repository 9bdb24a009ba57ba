"""Steps from the order in which optimizers are stepped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.worker.hooks.optimizers import StepEnds, period_of


def ends_of(keys: list[int]) -> list[int]:
    """The positions of events that end a step, as a session asks for them."""
    ends, found = StepEnds(), []
    for position, key in enumerate(keys):
        is_end = ends.add(key)
        if not is_end and (ends.is_broken or ends.period is None):
            is_end = ends.settle()
        if is_end:
            found.append(position)
    return found


def test_one_optimizer_ends_every_step() -> None:
    assert ends_of([0] * 6) == [2, 3, 4, 5]


def test_two_optimizers_make_one_step() -> None:
    keys = [0, 1] * 6
    assert period_of(keys) == (0, 1)
    assert all(keys[end] == 1 for end in ends_of(keys))
    assert ends_of(keys)[-3:] == [7, 9, 11]


def test_five_steps_of_a_critic_and_one_of_a_generator() -> None:
    keys = [0, 0, 0, 0, 0, 1] * 6
    ends = ends_of(keys)
    assert period_of(keys) == (0, 0, 0, 0, 0, 1)
    assert [end for end in ends if end >= 18] == [23, 29, 35]  # once three periods are known


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(4, 8))
def test_any_repeated_sequence_has_a_period_that_divides_it(step: list[int], repetitions: int) -> None:
    period = period_of(step * repetitions)
    assert period is not None
    assert len(step) % len(period) == 0
    assert sorted(set(period)) == sorted(set(step))


@pytest.mark.parametrize(
    ("keys", "period"),
    [
        ([0, 0, 0, 1, 0, 1, 0, 1, 0, 1], (0, 1)),  # a script may begin differently
        ([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1], None),
        ([], None),
        ([0, 0], None),
        ([0, 1], None),
    ],
)
def test_too_few_or_random_events_have_no_period(keys: list[int], period: tuple[int, ...] | None) -> None:
    assert period_of(keys) == period


def test_a_foreign_event_breaks_the_period() -> None:
    ends = StepEnds()
    for _ in range(4):
        ends.add(0)
    assert ends.settle()
    assert not ends.add(1)
    assert ends.is_broken
