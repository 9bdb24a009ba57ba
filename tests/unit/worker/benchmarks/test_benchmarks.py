"""Benchmarks of ranks: how many steps are measured, and what is refused."""

from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS, Breakdown
from scalescope.catalog.benchmarks.train import Train
from scalescope.errors import BadInput
from scalescope.experiment.explanations import breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.worker.benchmarks import memory, train
from scalescope.worker.benchmarks.breakdown import measure
from scalescope.worker.benchmarks.memory import next_whole
from scalescope.worker.benchmarks.train import (
    StepSchedule,
    _check_same_length,
    _schedule_of,
)
from scalescope.worker.process.group import Group
from scalescope.worker.trace.recorder import step_counts
from scalescope.worker.training.feeding import Feed
from scalescope.worker.training.step import Data, Step, Workload
from tests.builders.loops import own_loop
from tests.builders.results import make_trial
from tests.builders.workers import CPU, options


def _schedule(accumulation: int, batches: int | None, **changes: object) -> StepSchedule:
    asked = options(Train, **changes)
    return _schedule_of(asked, Feed(batches=iter(()), epoch_batches=batches), accumulation)


def test_an_epoch_takes_all_batches_once_whatever_is_accumulated() -> None:
    schedule = _schedule(4, 10, steps_per_epoch=None, epochs=3)
    assert (schedule.epoch_steps, schedule.steps) == (3, 9)
    assert [schedule.parts_of(step) for step in range(9)] == [4, 4, 2] * 3
    schedule = _schedule(4, 10, steps_per_epoch=7)  # batches are taken as they come
    assert [schedule.parts_of(step) for step in range(schedule.steps or 0)] == [4] * 7


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_whose_data_differ_in_length_name_all_lengths(rank: int) -> None:
    lengths = {0: "5", 1: "8"}
    group = mock.Mock(spec=Group, rank=rank)
    group.exchange = lambda topic, message: {other: text for other, text in lengths.items() if other != rank}
    all_of_it = options(Train, steps_per_epoch=None)
    feed = Feed(batches=iter(()), epoch_batches=int(lengths[rank]))
    with pytest.raises(BadInput, match="rank 0 has 5 batches, rank 1 has 8 batches"):
        _check_same_length(all_of_it, feed, group)
    _check_same_length(options(Train, steps_per_epoch=7), feed, group)
    lengths |= {0: "5", 1: "5"}
    _check_same_length(all_of_it, Feed(batches=iter(()), epoch_batches=5), group)


def _measured(schedule: StepSchedule, step_s: float = 0.01, made: int = 5, **asked: object) -> list[int]:
    """What is measured after a warm-up."""
    trial = mock.Mock(spec=Trial, options=lambda card: options(Train, **asked))
    loop = own_loop(mock.Mock(spec=Step, accumulation_steps=1, is_whole=False), iter(()), trial)
    loop.schedule = schedule
    return loop.windows(step_s, made)


@pytest.mark.parametrize(
    ("warmup", "by_epoch", "stretches"),
    [(5, False, [25]), (5, True, [5, 10, 10]), (10, True, [0, 10, 10]), (12, True, [0, 8, 10])],
)
def test_what_is_measured(warmup: int, by_epoch: bool, stretches: list[int]) -> None:
    asked = {"steps_per_epoch": 10, "epochs": 3, "warmup_steps": warmup, "window": None}
    assert _measured(_schedule(1, None, **asked), made=warmup, eval=by_epoch, **asked) == stretches


def test_a_window_is_filled_with_steps() -> None:
    schedule = _schedule(1, None)
    assert schedule.steps is None
    assert _measured(schedule, window=1.0) == [100]
    assert _measured(schedule, 0.05, window=1.0) == [20]
    assert _measured(schedule, 0.4, window=1.0, min_steps=5) == [5]


@pytest.mark.parametrize(
    ("batches", "message"), [(4, r"warmup_steps 5.* 4 steps"), (None, "steps_per_epoch all")]
)
def test_data_too_small_for_the_warm_up_or_without_a_length_is_refused(
    batches: int | None, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        _schedule(1, batches, steps_per_epoch=None)


def test_a_model_that_communicates_is_refused_without_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    workload = Workload(model=model, data=Data(), loss=lambda output, targets: output.sum())
    monkeypatch.setattr(train, "build_workload", lambda trial, group, device: workload)
    silent = make_trial(world_size=2, without_communication=True)
    arguments = (silent, mock.Mock(), torch.device("cpu"), mock.Mock(), None)
    with pytest.raises(BadInput, match="cannot be trained without communication"), train.prepared(*arguments):
        pass


def test_on_the_cpu_it_is_refused() -> None:
    group = mock.Mock()
    with pytest.raises(BadInput, match="requires a CUDA GPU"):
        measure(breakdown_of(make_trial()), group, CPU, mock.Mock(), None)
    assert group.mock_calls == []  # nothing was built


def test_a_launch_never_takes_more_steps_than_its_card_says() -> None:
    card = options(Breakdown, "cuda")
    most = card.warmup_on("cuda") + sum(step_counts(0.0)) + 2 * WATCHED_STEPS
    assert card.steps() == most
    assert card.warmup_on("cuda") >= card.warmup_on("cpu") == card.warmup_steps


def test_the_short_end_of_a_pass_is_left_out() -> None:
    stream = iter([torch.zeros(size) for size in (3, 8, 8, 3, 8)])
    assert [len(next_whole(stream, 8)) for _ in range(3)] == [8, 8, 8]
    assert len(next_whole(iter([torch.zeros(2), torch.zeros(3)]), 8)) == 3  # none is whole


@pytest.mark.parametrize(
    "message", ["could not create a primitive", "could not execute a primitive", "std::bad_alloc"]
)
def test_a_library_that_gets_nothing_is_out_of_memory(message: str) -> None:
    with pytest.raises(MemoryError, match=message), memory._limited(1 << 40, torch.device("cpu")):
        raise RuntimeError(message)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory._limited(1 << 40, torch.device("cpu")):
        raise RuntimeError("shapes do not match")
