"""The course of a training: where epochs end, and what is measured of them."""

import pytest

from scalescope.catalog.benchmarks.train import Train
from scalescope.errors import BadInput
from scalescope.worker.benchmarks.train import _course_of, _stretches
from scalescope.worker.feeding import Feed

from ..making import options


def _course(accumulation: int, batches: int | None, **changes: object):  # type: ignore[no-untyped-def]
    asked = options(Train, **changes)
    return _course_of(asked, Feed(batches=iter(()), epoch_batches=batches), accumulation)


def test_an_epoch_takes_all_batches_once_whatever_is_accumulated() -> None:
    course = _course(4, 10, steps_per_epoch=None, epochs=3)
    assert (course.epoch_steps, course.steps) == (3, 9)
    assert [course.parts_of(step) for step in range(9)] == [4, 4, 2] * 3


def test_a_given_number_of_steps_takes_batches_as_they_come() -> None:
    course = _course(4, 10, steps_per_epoch=7)
    assert [course.parts_of(step) for step in range(course.steps)] == [4] * 7


@pytest.mark.parametrize(
    ("warmup", "by_epoch", "stretches"),
    [(5, False, [25]), (5, True, [5, 10, 10]), (10, True, [0, 10, 10]), (12, True, [0, 8, 10])],
)
def test_what_is_measured(warmup: int, by_epoch: bool, stretches: list[int]) -> None:
    course = _course(1, None, steps_per_epoch=10, epochs=3, warmup_steps=warmup)
    assert _stretches(course, warmup, by_epoch) == stretches


def test_data_too_small_for_the_warm_up_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^warmup_steps 5 leaves nothing of the data's 4 steps$"):
        _course(1, 4, steps_per_epoch=None)


def test_data_without_a_length_has_no_whole_epoch() -> None:
    with pytest.raises(BadInput, match="this data has no known length"):
        _course(1, None, steps_per_epoch=None)
