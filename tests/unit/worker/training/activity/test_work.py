"""The size of batches, of any shape and nesting, and what is stored of it."""

import pytest
import torch

from scalescope.worker.training.activity.work import (
    BatchWork,
    by_step,
    work_counters,
    work_of,
    work_samples,
)

TEXT = torch.zeros(3, 7, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "work"),
    [
        ((torch.zeros(4, 3, 2, 2), torch.zeros(4, dtype=torch.long)), BatchWork(52, 48, None)),
        ((TEXT, torch.zeros(3)), BatchWork(24, 21, 21)),
        ({"mask": torch.zeros(3, 7), "ids": TEXT, "name": "x"}, BatchWork(42, 21, 21)),
        ([(TEXT, [torch.zeros(5)]), 7], BatchWork(26, 21, 21)),
        (torch.zeros(()), BatchWork(1, 1, None)),
        ("no tensor", BatchWork(0, 0, None)),
    ],
)
def test_the_elements_of_a_batch(batch: object, work: BatchWork) -> None:
    assert work_of(batch) == work


def test_a_step_has_the_work_of_all_its_batches() -> None:
    batches = [(4, BatchWork(10, 6, 6)), (4, BatchWork(20, 12, 12)), (5, BatchWork(30, 18, None))]
    assert by_step(batches) == [BatchWork(30, 18, 18), BatchWork(30, 18, None)]


def test_steps_that_differ_are_kept_one_by_one() -> None:
    steps = [BatchWork(10, 8, 8), BatchWork(30, 24, 24)]
    assert work_samples(steps) == {"work/elements": [10.0, 30.0]}
    assert work_counters(steps) == {
        "work/elements": 20.0,
        "work/input_elements": 16.0,
        "work/tokens": 16.0,
        "work/variation": 0.5,
    }


def test_of_equal_steps_only_the_mean_is_kept() -> None:
    steps = [BatchWork(10, 8, None)] * 5
    assert work_samples(steps) == {}
    assert work_counters(steps)["work/variation"] == 0.0
    assert work_counters(steps)["work/tokens"] is None
