"""Feeding: an endless stream of batches on the device, whichever way the samples come."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    default_collate,
)

from scalescope.catalog.levers.copying import Copying
from scalescope.catalog.levers.input import Input
from scalescope.errors import BadInput
from scalescope.parent_death import die_with_parent
from scalescope.worker.training.step import Batch, Batches, Data, batch_size_of, map_tensors

_DISTINCT_BATCHES = 2  # made once and kept on the device: input costs nothing then


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which part of the samples a rank works on; the ranks of one pipeline share a part."""

    index: int
    count: int


@dataclass(kw_only=True)
class InputTimes:
    """What the host's clock says about batches: waiting for the loader, and having them copied."""

    batches: int = 0
    loader_s: float = 0.0
    copy_s: float = 0.0

    def begin(self) -> None:
        """Count from here on: the first batches wait for the loader's processes to start."""
        self.batches, self.loader_s, self.copy_s = 0, 0.0, 0.0

    def counters(self) -> dict[str, float | int | str | None]:
        """Seconds of each a batch."""
        if not self.batches:
            return {}
        return {"loader_s": self.loader_s / self.batches, "copy_s": self.copy_s / self.batches}


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Batches without end, and how many make up all samples once, where that is known."""

    batches: Batches
    epoch_batches: int | None = None
    waits: InputTimes = field(default_factory=InputTimes)

    def close(self) -> None:
        """End the loader's processes."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()


def preloaded(source: Feed) -> Feed:
    """The first batches of a feed over and over, ready on the device: what steps take that never wait."""
    try:
        ready = list(itertools.islice(source.batches, _DISTINCT_BATCHES))
    finally:
        source.close()
    return Feed(batches=itertools.cycle(ready), epoch_batches=source.epoch_batches)


class PeekableBatches:
    """Batches whose first one was looked at, and still comes first."""

    def __init__(self, batches: Batches) -> None:
        self._rest = batches
        self._first = [next(batches)]

    @property
    def first(self) -> Batch:
        return self._first[0]

    def __iter__(self) -> "PeekableBatches":
        return self

    def __next__(self) -> Batch:
        return self._first.pop() if self._first else next(self._rest)

    def close(self) -> None:
        """End the loader behind it, also before the first batch was taken."""
        close = getattr(self._rest, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What the input levers ask for: who prepares batches, and how they get to the device."""

    loader: Input
    copying: Copying


def feed(
    data: Data, batch_size: int, how: InputOptions, device: torch.device, shard: Shard, seed: int
) -> Feed:
    """The stream of batches, handled as asked."""
    generator = torch.Generator().manual_seed(seed * 65_537 + shard.index + 1)
    if data.synthesize is not None:
        if how.loader.num_workers is None:
            ready = [
                to_device(data.synthesize(batch_size, generator), device) for _ in range(_DISTINCT_BATCHES)
            ]
            return Feed(batches=itertools.cycle(ready))
        data = Data(samples=_MadeUp(data.synthesize, seed), collate=_as_it_is)
        return _from_loader(data, batch_size, how, device, _Endless(shard), seed)
    if isinstance(data.samples, IterableDataset):
        return _from_loader(data, batch_size, how, device, None, seed)
    if _is_numbered(data.samples):
        sampler: Sampler[int] = DistributedSampler(data.samples, shard.count, shard.index, seed=seed)
        return _from_loader(data, batch_size, how, device, sampler, seed + shard.index)
    waits = InputTimes()
    made = _ready_made(data.samples, batch_size)
    return Feed(batches=_copied(made, how.copying, device, waits), waits=waits)


def _is_numbered(samples: Any) -> bool:
    """Whether samples are asked for one by one, by number."""
    return hasattr(samples, "__getitem__") and hasattr(samples, "__len__")


def _from_loader(
    data: Data,
    batch_size: int,
    how: InputOptions,
    device: torch.device,
    sampler: Sampler[int] | None,
    seed: int,
) -> Feed:
    options = how.loader
    workers = data.num_workers if options.num_workers is None else options.num_workers
    # A generator of its own, or starting worker processes would move the model's random numbers.
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        data.samples,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=how.copying.pin_memory,
        persistent_workers=options.persistent_workers,
        prefetch_factor=options.prefetch_factor,
        collate_fn=data.collate,
        drop_last=data.drop_last,
        worker_init_fn=_dies_with(os.getpid()),
        multiprocessing_context="fork" if workers else None,
        generator=generator,
    )
    waits = InputTimes()
    stream = _copied(_epochs(loader, sampler), how.copying, device, waits)
    ends = isinstance(sampler, DistributedSampler)
    return Feed(batches=stream, epoch_batches=len(loader) if ends else None, waits=waits)


def _epochs(loader: "DataLoader[Any]", sampler: Sampler[int] | None) -> Iterator[Batch]:
    for epoch in itertools.count():
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)  # or every epoch would be shuffled alike
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise BadInput("the data set is empty, or smaller than one batch")


def _copied(
    batches: Iterator[Batch], options: Copying, device: torch.device, waits: InputTimes
) -> Iterator[Batch]:
    waited = _waited_for(batches, waits)
    if options.prefetch_stream and device.type == "cuda":
        return _copied_ahead(waited, device, waits)

    def copy(batch: Batch) -> Batch:
        return to_device(batch, device, non_blocking=options.non_blocking)

    return (_timed(copy, batch, waits) for batch in waited)


def _waited_for(batches: Iterator[Batch], waits: InputTimes) -> Iterator[Batch]:
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        waits.loader_s += time.perf_counter() - began
        waits.batches += 1
        yield batch


def _timed(copy: Callable[[Batch], Batch], batch: Batch, waits: InputTimes) -> Batch:
    """Copy, and count how long the host was held up by it."""
    began = time.perf_counter()
    copied = copy(batch)
    waits.copy_s += time.perf_counter() - began
    return copied


def _copied_ahead(batches: Iterator[Batch], device: torch.device, waits: InputTimes) -> Iterator[Batch]:
    """Copy the next batch on a stream of its own while the current one is used."""
    copies = torch.cuda.Stream(device)

    def copy(batch: Batch) -> Batch:
        with torch.cuda.stream(copies):
            return to_device(batch, device, non_blocking=True)

    def begin(batch: Batch) -> Batch:
        return _timed(copy, batch, waits)

    def claim(tensor: Tensor) -> Tensor:
        tensor.record_stream(torch.cuda.current_stream(device))  # or its memory could be reused too early
        return tensor

    coming = begin(next(batches))
    for batch in batches:
        torch.cuda.current_stream(device).wait_stream(copies)
        ready, coming = coming, begin(batch)
        yield map_tensors(claim, ready)
    torch.cuda.current_stream(device).wait_stream(copies)
    yield map_tensors(claim, coming)


def _ready_made(source: Any, batch_size: int) -> Iterator[Batch]:
    """Batches from somebody else's iterable, from the beginning again when it ends."""
    while True:
        count = 0
        passing = iter(source)
        once = passing is source  # a generator does not begin again
        for batch in passing:
            count += 1
            held = batch_size_of(batch)
            if count == 1 and held != batch_size:
                raise BadInput(
                    f"the data's batches hold {held} samples and a rank's batch is {batch_size}; "
                    f"--batch-size {held} fits"
                )
            yield batch
        if once:
            raise BadInput("the data ended before the training did; give fewer steps or data that goes on")
        if count == 0:
            raise BadInput("the data holds no batch at all")


def fetch(data: Data, samples: Any, numbers: list[int]) -> Batch:
    """The samples of these numbers, put together as a loader would."""
    at_once = getattr(samples, "__getitems__", None)
    fetched = at_once(numbers) if at_once else [samples[number] for number in numbers]
    return (data.collate or default_collate)(fetched)


def to_device(batch: Batch, device: torch.device, *, non_blocking: bool = False) -> Batch:
    """The batch with every tensor in it on the device."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch)


def _dies_with(rank_process: int) -> Callable[[int], None]:
    """Loader processes end with their rank; left alone they outlive a killed one by seconds."""
    return lambda _: die_with_parent(rank_process)


def _as_it_is(batch: Batch) -> Batch:
    return batch


class _Endless(Sampler[int]):
    """Numbers without end: a loader that began again would cost time, the sooner the more ranks."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._shard.index, self._shard.count)


class _MadeUp(Dataset[Any]):
    """Synthetic samples by number, made when a loader asks for them."""

    def __init__(self, synthesize: Callable[[int, torch.Generator], Batch], seed: int) -> None:
        self._synthesize = synthesize
        self._seed = seed

    def __getitems__(self, numbers: list[int]) -> Batch:
        generator = torch.Generator().manual_seed(self._seed * 65_537 + numbers[0])
        return self._synthesize(len(numbers), generator)
