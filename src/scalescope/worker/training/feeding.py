"""Feeding: an endless stream of batches on the device, from any kind of data."""

import itertools
import os
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

from scalescope import clocks
from scalescope.catalog.levers.copying import Copying
from scalescope.catalog.levers.input import Input
from scalescope.errors import BadInput
from scalescope.parent_death import die_with_parent
from scalescope.worker.loading import LoaderSettings, LoaderWatch, read_alone
from scalescope.worker.training.step import Batch, Batches, Data, batch_size_of, map_tensors

_PREFETCH_FACTOR = 2  # torch's default
_DISTINCT_BATCHES = 2  # made once and kept on the device: input then costs nothing


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of the samples that a rank works on; the ranks of a pipeline share one."""

    index: int
    count: int


@dataclass(kw_only=True)
class InputTimes:
    """Host time spent on batches: waiting for the loader, and copying to the device."""

    batches: int = 0
    loader_s: float = 0.0
    copy_s: float = 0.0
    first_batch_s: float | None = field(default=None, compare=False)  # until the very first was there
    process_s: float | None = field(default=None, compare=False)  # of a batch that one thread prepared
    counts: bool = field(default=False, compare=False)
    batch_bytes: int | None = field(default=None, compare=False)  # of the first batch that is counted
    watch: LoaderWatch | None = field(default=None, compare=False)  # None without a loader of torch

    def begin(self) -> None:
        """Start counting: the first batches wait for the loader's processes to start."""
        self.batches, self.loader_s, self.copy_s, self.batch_bytes = 0, 0.0, 0.0, None
        self.counts = True
        if self.watch is not None:
            self.watch.begin()

    @property
    def asks_for_process(self) -> bool:
        """Whether the next batch should be prepared on one thread: the second, before anything counts."""
        return (
            self.watch is not None
            and not self.watch.has_workers
            and not self.counts
            and self.first_batch_s is not None
            and self.process_s is None
        )

    def add(self, batch: Batch, waited_s: float, cpu_s: float) -> None:
        """A batch, how long the rank waited for it, and its processor's time for that."""
        self.loader_s += waited_s
        self.batches += 1
        if self.first_batch_s is None:
            self.first_batch_s = waited_s
        if self.batch_bytes is None:
            self.batch_bytes = bytes_of(batch)
        if self.watch is not None and not self.watch.has_workers:
            self.watch.add_batch(waited_s, cpu_s)

    def counters(self) -> dict[str, float | int | str | None]:
        """Seconds per batch."""
        if not self.batches:
            return {}
        times = {
            "loader_s": self.loader_s / self.batches,
            "copy_s": self.copy_s / self.batches,
            "loader/first_batch_s": self.first_batch_s,
            "loader/process_s": self.process_s,
            "loader/batch_bytes": self.batch_bytes,
        }
        known = {name: value for name, value in times.items() if value is not None}
        return {**known, **({} if self.watch is None else self.watch.counters())}


@dataclass(frozen=True, kw_only=True)
class Feed:
    """An endless stream of batches, and how many of them are an epoch, if known."""

    batches: Batches
    epoch_batches: int | None = None
    input_times: InputTimes = field(default_factory=InputTimes)
    loader: "_Epochs | None" = None
    batches_ahead: int = 0  # that processes prepare

    def close(self) -> None:
        """End the loader's processes."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
        if self.loader is not None:
            self.loader.close()


def preloaded(source: Feed) -> Feed:
    """The first batches of a feed, repeated and ready on the device: steps that never wait for input."""
    try:
        ready = list(itertools.islice(source.batches, _DISTINCT_BATCHES))
    finally:
        source.close()
    return Feed(batches=itertools.cycle(ready), epoch_batches=source.epoch_batches)


class PeekableBatches:
    """A stream of batches whose first one can be read without consuming it."""

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
        """Close the loader, also before the first batch was taken."""
        close = getattr(self._rest, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The settings of the input levers: who prepares batches, and how they are copied to the device."""

    loader: Input
    copying: Copying


def feed(
    data: Data, batch_size: int, options: InputOptions, device: torch.device, shard: Shard, seed: int
) -> Feed:
    """The stream of batches, prepared and copied according to `options`."""
    generator = torch.Generator().manual_seed(seed * 65_537 + shard.index + 1)
    if data.synthesize is not None:
        if options.loader.num_workers is None:
            ready = [
                to_device(data.synthesize(batch_size, generator), device) for _ in range(_DISTINCT_BATCHES)
            ]
            return Feed(batches=itertools.cycle(ready))
        data = Data(samples=_SyntheticSamples(data.synthesize, seed), collate=_unchanged)
        return _from_loader(data, batch_size, options, device, _EndlessSampler(shard), seed)
    if isinstance(data.samples, IterableDataset):
        return _from_loader(data, batch_size, options, device, None, seed)
    if _is_map_style(data.samples):
        sampler: Sampler[int] = DistributedSampler(data.samples, shard.count, shard.index, seed=seed)
        return _from_loader(data, batch_size, options, device, sampler, seed + shard.index)
    times = InputTimes()
    made = _user_batches(data.samples, batch_size)
    ahead = _ahead(data.samples)
    return Feed(batches=_copied(made, options.copying, device, times), input_times=times, batches_ahead=ahead)


def _is_map_style(samples: Any) -> bool:
    """Whether samples are read by index."""
    return hasattr(samples, "__getitem__") and hasattr(samples, "__len__")


def _from_loader(
    data: Data,
    batch_size: int,
    options: InputOptions,
    device: torch.device,
    sampler: Sampler[int] | None,
    seed: int,
) -> Feed:
    loading = options.loader
    workers = data.num_workers if loading.num_workers is None else loading.num_workers
    # A separate generator: starting worker processes must not advance the model's random numbers.
    generator = torch.Generator().manual_seed(seed)
    watch = LoaderWatch(
        LoaderSettings(
            workers=workers,
            prefetch_factor=(loading.prefetch_factor or _PREFETCH_FACTOR) if workers else None,
            pin_memory=options.copying.pin_memory,
            persistent_workers=loading.persistent_workers,
        )
    )
    loader = DataLoader(
        data.samples,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=options.copying.pin_memory,
        persistent_workers=loading.persistent_workers,
        prefetch_factor=loading.prefetch_factor,
        collate_fn=watch.timed_collate(data.collate or default_collate),
        drop_last=data.drop_last,
        worker_init_fn=_start_worker(os.getpid(), watch),
        multiprocessing_context="fork" if workers else None,
        generator=generator,
    )
    times = InputTimes(watch=watch)
    epochs = _Epochs(loader, sampler, watch)
    stream = _copied(epochs, options.copying, device, times)
    ends = isinstance(sampler, DistributedSampler)
    count = len(loader) if ends else None
    return Feed(
        batches=stream,
        epoch_batches=count,
        input_times=times,
        loader=epochs,
        batches_ahead=_ahead(loader),
    )


def _ahead(loader: Any) -> int:
    """How many batches the processes of a loader prepare ahead; anything else has none."""
    workers, each = (getattr(loader, name, None) for name in ("num_workers", "prefetch_factor"))
    return workers * each if isinstance(workers, int) and isinstance(each, int) else 0


class _Epochs:
    """The batches of a loader, epoch after epoch.

    It ends the loader's processes itself: where the garbage collector finds torch's iterator in a cycle, the
    queues to its processes are closed first, and each process is then waited for in vain, for 5 seconds.
    """

    def __init__(self, loader: "DataLoader[Any]", sampler: Sampler[int] | None, watch: LoaderWatch) -> None:
        self._loader, self._sampler, self._watch = loader, sampler, watch
        self._epoch = -1
        self._batches: Iterator[Batch] | None = None
        self._is_empty = True

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            if self._batches is None:
                self._batches = self._begun()
            try:
                batch = next(self._batches)
            except StopIteration:
                if self._is_empty:
                    raise BadInput("the data set is empty, or smaller than one batch") from None
                self._batches = None
            else:
                self._is_empty = False
                return batch

    def _begun(self) -> Iterator[Batch]:
        self._epoch += 1
        self._is_empty = True
        self._watch.restart()
        if isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(self._epoch)  # otherwise all epochs would have the same order
        return iter(self._loader)

    def close(self) -> None:
        """End the processes that prepare batches, if there are any."""
        shut_down = getattr(self._batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()


def _copied(
    batches: Iterator[Batch], options: Copying, device: torch.device, times: InputTimes
) -> Iterator[Batch]:
    loaded = _timed_loader(batches, times)
    if options.prefetch_stream and device.type == "cuda":
        return _copied_ahead(loaded, device, times)

    def copy(batch: Batch) -> Batch:
        return to_device(batch, device, non_blocking=options.non_blocking)

    return (_timed_copy(copy, batch, times) for batch in loaded)


def _timed_loader(batches: Iterator[Batch], times: InputTimes) -> Iterator[Batch]:
    while True:
        began, cpu_began = clocks.perf_counter(), clocks.thread_time()
        if times.asks_for_process:
            batch, times.process_s = read_alone(lambda: next(batches, None))
        else:
            batch = next(batches, None)
        if batch is None:
            return
        times.add(batch, clocks.perf_counter() - began, clocks.thread_time() - cpu_began)
        yield batch


def _timed_copy(copy: Callable[[Batch], Batch], batch: Batch, times: InputTimes) -> Batch:
    """Copy a batch and add the time that the host spent on it."""
    began = clocks.perf_counter()
    copied = copy(batch)
    times.copy_s += clocks.perf_counter() - began
    return copied


def _copied_ahead(batches: Iterator[Batch], device: torch.device, times: InputTimes) -> Iterator[Batch]:
    """Copy the next batch on a separate stream while the current one is used."""
    copies = torch.cuda.Stream(device)

    def copy(batch: Batch) -> Batch:
        with torch.cuda.stream(copies):
            return to_device(batch, device, non_blocking=True)

    def begin(batch: Batch) -> Batch:
        return _timed_copy(copy, batch, times)

    def claim(tensor: Tensor) -> Tensor:
        # Otherwise its memory could be reused too early.
        tensor.record_stream(torch.cuda.current_stream(device))
        return tensor

    coming = begin(next(batches))
    for batch in batches:
        torch.cuda.current_stream(device).wait_stream(copies)
        ready, coming = coming, begin(batch)
        yield map_tensors(claim, ready)
    torch.cuda.current_stream(device).wait_stream(copies)
    yield map_tensors(claim, coming)


def _user_batches(source: Any, batch_size: int) -> Iterator[Batch]:
    """Batches from a user's iterable, restarted when it ends."""
    while True:
        count = 0
        iterator = iter(source)
        once = iterator is source  # a generator cannot be restarted
        for batch in iterator:
            count += 1
            held = batch_size_of(batch)
            if count == 1 and held != batch_size:
                raise BadInput(
                    f"the data's batches have {held} samples, but the batch size per rank is {batch_size}; "
                    f"use --batch-size {held}"
                )
            yield batch
        if once:
            raise BadInput(
                "the data ended before the training did; use fewer steps, or data that can be read repeatedly"
            )
        if count == 0:
            raise BadInput("the data has no batches")


def fetch(data: Data, samples: Any, numbers: list[int]) -> Batch:
    """The samples with these indices, collated as a loader would."""
    get_items = getattr(samples, "__getitems__", None)
    fetched = get_items(numbers) if get_items else [samples[number] for number in numbers]
    return (data.collate or default_collate)(fetched)


def to_device(batch: Batch, device: torch.device, *, non_blocking: bool = False) -> Batch:
    """The batch with every tensor in it on the device, and every object that has a method for that."""

    def move(part: Any) -> Any:
        return part.to(device) if callable(getattr(part, "to", None)) else part

    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch, move)


def bytes_of(batch: Batch) -> int | None:
    """Bytes of all tensors in a batch; None where it has none."""
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    map_tensors(count, batch)
    return sum(sizes) or None


def _start_worker(rank_process: int, watch: LoaderWatch) -> Callable[[int], None]:
    """Makes loader processes end with their rank, which they would outlive by seconds if it were killed, and
    puts their work under the clock."""

    def start(_: int) -> None:
        die_with_parent(rank_process)
        watch.start_worker()

    return start


def _unchanged(batch: Batch) -> Batch:
    return batch


class _EndlessSampler(Sampler[int]):
    """Endless indices: restarting a loader would cost time, more often with more ranks."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self._shard.index, self._shard.count)


class _SyntheticSamples(Dataset[Any]):
    """Synthetic samples by index, made when a loader requests them."""

    def __init__(self, synthesize: Callable[[int, torch.Generator], Batch], seed: int) -> None:
        self._synthesize = synthesize
        self._seed = seed

    def __getitems__(self, numbers: list[int]) -> Batch:
        generator = torch.Generator().manual_seed(self._seed * 65_537 + numbers[0])
        return self._synthesize(len(numbers), generator)
