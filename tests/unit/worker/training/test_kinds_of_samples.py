"""Feeding: synthetic samples, data sets, streams and ready batches all become one endless stream."""

import os
from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from scalescope.errors import BadInput
from scalescope.worker.training.feeding import to_device
from scalescope.worker.training.step import Batch, Data, batch_size_of
from tests.builders.launching import lives
from tests.builders.workers import CPU, feed_of


def _made_up(count: int, generator: torch.Generator) -> Batch:
    return torch.randn(count, 3, generator=generator), torch.full((count,), os.getpid())


def _numbered(count: int) -> TensorDataset:
    numbers = torch.arange(count)
    return TensorDataset(numbers, numbers * 10)


def _take(batches: Iterator[Batch], count: int) -> list[Batch]:
    return [next(batches) for _ in range(count)]


def test_synthetic_samples_wait_on_the_device_and_come_again() -> None:
    feed = feed_of(Data(synthesize=_made_up), 5)
    first, second, third, fourth = _take(feed.batches, 4)
    assert first[0].shape == (5, 3)
    assert third[0] is first[0] and fourth[0] is second[0]
    assert not torch.equal(first[0], second[0])
    assert feed.epoch_batches is None
    feed.close()


def test_shards_get_different_synthetic_samples_and_always_the_same() -> None:
    data = Data(synthesize=_made_up)
    mine, again, other = (next(feed_of(data, index=index, count=2).batches)[0] for index in (0, 0, 1))
    assert torch.equal(mine, again)
    assert not torch.equal(mine, other)


def test_without_processes_the_rank_itself_prepares_new_samples_and_no_two_shards_share_one() -> None:
    """They never end: a loader that began again in the middle of a window would read as time lost."""
    first, second = (feed_of(Data(synthesize=_made_up), 4, index=n, count=2, num_workers=0) for n in (0, 1))
    assert first.epoch_batches is None
    taken = [batch for feed in (first, second) for batch in _take(feed.batches, 50)]
    assert len({tuple(batch[0].flatten().tolist()) for batch in taken}) == 100
    assert taken[0][0].shape == (4, 3)
    assert {pid for batch in taken for pid in batch[1].tolist()} == {os.getpid()}


@pytest.mark.parametrize("keep", [True, False])
def test_processes_prepare_batches_and_end_with_the_feed(keep: bool) -> None:
    feed = feed_of(Data(synthesize=_made_up), 5, num_workers=2, persistent_workers=keep)
    processes = {batch[1][0].item() for batch in _take(feed.batches, 6)}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert all(lives(process) for process in processes)
    feed.close()
    assert not any(lives(process) for process in processes)


def test_the_last_batch_of_an_epoch_holds_the_rest_unless_it_is_dropped() -> None:
    samples = _numbered(10)
    kept, dropped = (feed_of(Data(samples=samples, drop_last=drop), 4) for drop in (False, True))
    assert [len(batch[0]) for batch in _take(kept.batches, 4)] == [4, 4, 2, 4]
    assert [len(batch[0]) for batch in _take(dropped.batches, 3)] == [4, 4, 4]
    assert (kept.epoch_batches, dropped.epoch_batches) == (3, 2)


class _Who(Dataset[Any]):
    """Samples that hold the id of the process that prepared them."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> tuple[int, int]:
        return number, os.getpid()


@pytest.mark.parametrize(("asked", "expected"), [(None, 2), (0, 0)])
def test_the_users_loader_sets_the_number_of_processes_unless_requested(
    asked: int | None, expected: int
) -> None:
    feed = feed_of(Data(samples=_Who(), num_workers=2), 5, num_workers=asked)
    processes = {who for batch in _take(feed.batches, 6) for who in batch[1].tolist()}
    feed.close()
    assert len(processes - {os.getpid()}) == expected


def test_starting_processes_leaves_the_models_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    feed = feed_of(Data(samples=_numbered(40)), 5, num_workers=1)
    next(feed.batches)
    feed.close()
    assert torch.equal(torch.randn(3), expected)


def test_a_list_is_a_data_set_and_a_custom_collate_function_makes_its_batches() -> None:
    samples = [{"tokens": torch.full((2,), n), "labels": n} for n in range(8)]
    batch = next(feed_of(Data(samples=samples), 4).batches)
    assert set(batch) == {"tokens", "labels"}
    assert batch["tokens"].shape == (4, 2)
    assert torch.equal(batch["tokens"][:, 0], batch["labels"])
    feed = feed_of(Data(samples=list(range(8)), collate=lambda fetched: (torch.tensor(fetched), "mine")), 4)
    assert next(feed.batches)[1] == "mine"


class _Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))


def test_an_iterable_data_set_is_batched_and_begins_again() -> None:
    feed = feed_of(Data(samples=_Stream(5)), 2)
    assert [batch.tolist() for batch in _take(feed.batches, 4)] == [[0, 1], [2, 3], [4], [0, 1]]
    assert feed.epoch_batches is None


class _Batches:
    """Ready batches of these sizes, from the beginning whenever asked."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes

    def __iter__(self) -> Iterator[Batch]:
        for size in self._sizes:
            yield [torch.full((size, 2), float(size)), torch.zeros(size)]


def test_ready_batches_are_taken_as_they_are_and_begin_again() -> None:
    feed = feed_of(Data(samples=_Batches(4, 4, 1)))
    assert [len(batch[0]) for batch in _take(feed.batches, 5)] == [4, 4, 1, 4, 4]
    assert feed.epoch_batches is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(samples=_numbered(0)), r"^the data set is empty, or smaller than one batch$"),
        (Data(samples=_numbered(3), drop_last=True), r"^the data set is empty, or smaller than one batch$"),
        (Data(samples=_Stream(0)), r"^the data set is empty"),
        (Data(samples=_Batches()), "no batches"),
        (Data(samples=_Batches(3)), r"3 samples.* is 4; .*--batch-size 3$"),
    ],
)
def test_data_without_a_batch_of_the_size_asked_for_is_refused(data: Data, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        next(feed_of(data, 4).batches)


def test_a_generator_that_ends_is_reported() -> None:
    feed = feed_of(Data(samples=iter(_Batches(4, 4))))
    _take(feed.batches, 2)
    with pytest.raises(BadInput, match="the data ended"):
        next(feed.batches)


class _Graph:
    """An object of a library that moves itself."""

    def to(self, device: torch.device) -> tuple[str, torch.device]:
        return "moved", device


def test_every_tensor_in_batches_of_any_structure_is_moved() -> None:
    assert to_device(torch.zeros(1), CPU).device == CPU
    meta = torch.device("meta")
    assert to_device(UserDict(ids=torch.zeros(2)), meta)["ids"].device == meta
    pair = namedtuple("pair", "picture label")(torch.zeros(2), "cat")
    moved = to_device(
        {"text": "a", "none": None, "deep": [{"x": (torch.zeros(3), 1.5)}, pair, _Graph()]}, meta
    )
    assert (moved["text"], moved["none"]) == ("a", None)
    nested, named, graph = moved["deep"]
    assert (nested["x"][0].device, nested["x"][1]) == (meta, 1.5)
    assert (named.picture.device, named.label) == (meta, "cat")
    assert graph == ("moved", meta)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(3, 2), 3),
        ((torch.zeros(4, 2), torch.zeros(4)), 4),
        ({"name": "x", "ids": torch.zeros(5, 2)}, 5),
        (({"ids": torch.zeros(6, 2)}, torch.zeros(6)), 6),
        ((torch.tensor(1.0), torch.tensor(2.0)), 1),
        (("words", "only"), 1),
        ({"names": ["a", "b"], "scale": torch.tensor(1.0), "more": (None, torch.zeros(7, 2))}, 7),
        (None, 1),
    ],
)
def test_the_first_tensor_gives_the_number_of_samples_in_a_batch(batch: Batch, size: int) -> None:
    assert batch_size_of(batch) == size
