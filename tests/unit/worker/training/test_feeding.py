"""Feeding from data sets: who gets which sample in which epoch, and that loader processes never stay."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest
import torch

from scalescope import clocks
from scalescope.worker.text import ClassifiedTexts
from scalescope.worker.training import feeding
from scalescope.worker.training.feeding import (
    Feed,
    InputOptions,
    InputTimes,
    PeekableBatches,
    Shard,
    feed,
    preloaded,
)
from scalescope.worker.training.step import Data
from tests.builders.launching import lives
from tests.builders.workers import CPU, input_options
from tests.speed import patience


def texts(count: int) -> Data:
    """Samples whose class is their number."""
    tokens = torch.arange(count, dtype=torch.int32).view(count, 1)
    return Data(samples=ClassifiedTexts(tokens, torch.arange(count)), collate=lambda batch: batch)


def loader(num_workers: int | None = None, *, persistent: bool = False) -> InputOptions:
    return input_options(num_workers=num_workers, persistent_workers=persistent)


def epoch_of(stream: Feed) -> list[int]:
    """The samples of the next epoch in their order."""
    assert stream.epoch_batches is not None
    batches = [next(stream.batches) for _ in range(stream.epoch_batches)]
    return [int(label) for _, labels in batches for label in labels]


@pytest.mark.parametrize("options", [loader(), loader(1), loader(1, persistent=True)], ids=str)
def test_two_shards_see_every_sample_once_an_epoch(options: InputOptions) -> None:
    shards = [feed(texts(40), 6, options, CPU, Shard(index=index, count=2), 0) for index in (0, 1)]
    try:
        epochs = [[epoch_of(stream) for stream in shards] for _ in range(2)]
    finally:
        for stream in shards:
            stream.close()
    for first, second in epochs:
        assert len(first) == len(second) == 20
        assert sorted(first + second) == list(range(40))
    assert epochs[0][0] != epochs[1][0]
    assert set(epochs[0][0]) != set(epochs[1][0])


def test_shards_are_equally_long_where_samples_do_not_divide() -> None:
    """Ranks that make unequal numbers of steps would wait for each other for ever."""
    shards = [feed(texts(41), 4, loader(), CPU, Shard(index=index, count=2), 0) for index in (0, 1)]
    epochs = [epoch_of(stream) for stream in shards]
    assert [len(epoch) for epoch in epochs] == [21, 21]
    assert set(epochs[0] + epochs[1]) == set(range(41))


def test_the_order_is_the_seeds() -> None:
    def order(seed: int) -> list[int]:
        return epoch_of(feed(texts(30), 8, loader(), CPU, Shard(index=0, count=1), seed))

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_loader_processes_end_with_their_rank() -> None:
    reading, writing = os.pipe()
    rank = os.fork()  # a rank without loading torch anew
    if rank == 0:
        try:
            torch.set_num_threads(1)
            stream = feed(texts(4000), 4, loader(2), CPU, Shard(index=0, count=1), 0)
            next(stream.batches)
            pids = [child.pid for child in multiprocessing.active_children()]
            os.write(writing, json.dumps(pids).encode() + b"\n")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        with os.fdopen(reading) as answers:
            workers = json.loads(answers.readline())
        assert len(workers) == 2 and all(lives(pid) for pid in workers)
    finally:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    deadline = time.monotonic() + patience(5)
    while any(lives(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(lives(pid) for pid in workers)


def test_a_batch_is_on_its_device_before_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def make(size: int, generator: torch.Generator) -> torch.Tensor:
        done.append("made")
        return torch.zeros(size)

    monkeypatch.setattr(feeding, "to_device", lambda batch, device: done.append("moved"))
    feed(Data(synthesize=make), 4, loader(), CPU, Shard(index=0, count=1), 0)
    assert done == ["made", "moved"] * 2


def test_a_batch_that_was_looked_at_still_comes_first_and_once() -> None:
    behind = iter("abcd")
    peeked = PeekableBatches(behind)
    assert (peeked.first, peeked.first) == ("a", "a")
    assert next(behind) == "b"  # looking took one batch and no more
    assert list(peeked) == ["a", "c", "d"]


def test_a_batch_that_was_taken_is_not_kept() -> None:
    peeked = PeekableBatches(torch.ones(2) for _ in itertools.count())
    kept = weakref.ref(peeked.first)
    assert kept() is not None
    next(peeked)
    assert kept() is None


@pytest.mark.parametrize("taken", [0, 3])
def test_closing_ends_the_batches_behind_those_looked_at(taken: int) -> None:
    ended: list[str] = []

    def numbers() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            ended.append("once")

    behind = numbers()
    stream = Feed(batches=PeekableBatches(behind))
    assert [next(stream.batches) for _ in range(taken)] == list(range(taken))
    assert ended == []
    stream.close()
    stream.close()
    assert ended == ["once"]


@pytest.mark.parametrize("taken", [0, 3])
def test_closing_ends_the_loader_s_processes_also_before_the_first_batch_was_taken(taken: int) -> None:
    others = set(multiprocessing.active_children())
    stream = feed(texts(40), 4, loader(2), CPU, Shard(index=0, count=1), 0)
    peeked = PeekableBatches(stream.batches)
    for _ in range(taken):
        next(peeked)
    assert len(set(multiprocessing.active_children()) - others) == 2
    dataclasses.replace(stream, batches=peeked).close()
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.parametrize("persistent", [False, True])
def test_closing_ends_the_loader_s_processes_whoever_still_holds_its_batches(persistent: bool) -> None:
    others = set(multiprocessing.active_children())
    stream = feed(texts(40), 4, loader(2, persistent=persistent), CPU, Shard(index=0, count=1), 0)
    next(stream.batches)
    held = stream.loader
    assert len(set(multiprocessing.active_children()) - others) == 2
    stream.close()
    assert set(multiprocessing.active_children()) <= others
    assert held is stream.loader


def test_batches_without_close_are_accepted() -> None:
    stream = Feed(batches=PeekableBatches(itertools.cycle("ab")))
    stream.close()
    assert next(stream.batches) == "a"


def test_waits_are_reported_per_batch_from_where_they_begin() -> None:
    waits = InputTimes(batches=4, loader_s=0.2, copy_s=0.4)
    assert waits.counters() == pytest.approx({"loader_s": 0.05, "copy_s": 0.1})
    waits.begin()
    assert waits == InputTimes()
    assert waits.counters() == {}


class _Clock:
    """Goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.parametrize(
    ("options", "loader_s"),
    # Without processes the rank collates, for which the clock is read twice more, and times one batch alone.
    [(loader(), 11.0), (loader(1), 3.0)],
    ids=["no processes", "one process"],
)
def test_every_batch_of_a_loader_is_waited_for_and_copied(
    options: InputOptions, loader_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "perf_counter", _Clock())
    stream = feed(texts(40), 4, options, CPU, Shard(index=0, count=1), 0)
    assert stream.input_times.counters() == {}
    for _ in range(3):
        next(stream.batches)
    stream.close()
    assert stream.input_times == InputTimes(batches=3, loader_s=loader_s, copy_s=3.0)


def test_waits_for_user_supplied_batches_are_measured_too() -> None:
    batches = [torch.zeros(4, 1) for _ in range(2)]
    stream = feed(Data(samples=_Batches(batches)), 4, loader(), CPU, Shard(index=0, count=1), 0)
    for _ in range(5):
        next(stream.batches)
    assert stream.input_times.batches == 5
    counters = stream.input_times.counters()
    assert counters.pop("loader/batch_bytes") == 16  # of four numbers
    assert set(counters) == {"loader_s", "copy_s", "loader/first_batch_s"}


class _Batches:
    """Batches that are made already, without numbers."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._batches)


def test_batches_that_stay_on_the_device_or_are_preloaded_are_not_waited_for() -> None:
    made = Data(synthesize=lambda size, generator: torch.zeros(size))
    on_device = feed(made, 4, loader(), CPU, Shard(index=0, count=1), 0)
    for stream in (on_device, preloaded(feed(texts(40), 4, loader(), CPU, Shard(index=0, count=1), 0))):
        for _ in range(5):
            next(stream.batches)
        assert stream.input_times.counters() == {}
