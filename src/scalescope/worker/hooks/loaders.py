"""The script's DataLoaders: how long it waits for them, other arguments, and preloaded batches."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import dataloader as _module

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.worker.engine.explaining import PRELOADED_BATCHES
from scalescope.worker.hooks.hook_guard import HookGuard, Hooks
from scalescope.worker.loading import read_alone

_Key = Hashable | None
ARGUMENTS = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")


class ScriptLoaders(Hooks):
    """Times every batch that a DataLoader hands out, and applies what a trial changes about loaders."""

    def __init__(self, changes: Mapping[str, Any], guard: HookGuard, *, preloads: bool) -> None:
        super().__init__()
        self._guard = guard
        self._changes = {name: value for name, value in changes.items() if value is not None}
        self._preloads = preloads
        self._samples: dict[int, int] = {}  # by data set
        self._known: set[int] | None = None  # data sets that the model is trained with; None: all
        self._settled: frozenset[int] | None = None  # those of them that were there before the window
        self._kept = _KeptBatches(self._is_first_seen)
        self._sources: dict[int, tuple[Any, _Key]] = {}  # data sets, and where a batch has its samples
        self._waits_s: list[float] = []  # of a single data set
        self._lengths: list[int] = []
        self._wait_s = 0.0
        self._original_next: Callable[[Any], Any] | None = None  # of iterators that are timed
        self.batches = 0
        self._process_s: dict[int, float] = {}  # of a batch that one thread prepared, by data set
        self.workers = 0
        self.ahead = 0  # batches that processes prepare
        self.is_pinned = self.is_persistent = False
        self.changed = 0

    def install(self) -> None:
        if self._changes:
            self._undo.append(_replaced(DataLoader, "__init__", self._changed_init(DataLoader.__init__)))
        if self._preloads:
            self._undo.append(_replaced(DataLoader, "__iter__", self._preloaded_iter(DataLoader.__iter__)))
        iterator = _module._BaseDataLoaderIter
        self._undo.append(_replaced(iterator, "__next__", self._timed_next(iterator.__next__)))

    def remove(self) -> None:
        super().remove()
        self._sources.clear()
        self._kept.clear()

    @property
    def samples(self) -> int:
        """Samples since the last reset."""
        return sum(self._samples.values()) + sum(self._lengths)

    @property
    def wait_s(self) -> float:
        """How long the script waited for these batches since the last reset."""
        return self._wait_s + sum(self._waits_s)

    @property
    def process_s(self) -> float | None:
        """What one thread takes for a batch that the model is trained with; None where processes do that."""
        times = [self._process_s[number] for number in self._known or () if number in self._process_s]
        return times[0] if len(times) == 1 and not self.workers else None

    def reset(self) -> None:
        """Count from zero."""
        self._wait_s = 0.0
        for counts in (self._samples, self._waits_s, self._lengths):
            counts.clear()

    def settle(self) -> None:
        """Count from zero, and only data sets that were read since the last reset; others validate."""
        self._known = set(self._samples)
        self._settled = frozenset(self._known)
        self.reset()
        if len(self._known) == 1:
            dataset, key = self._sources[next(iter(self._known))]
            if key is not False:
                self._settle_on(dataset, key)

    @contextlib.contextmanager
    def preloading(self) -> Iterator[None]:
        """Hand out the same few batches while inside, also in loops that are under way; then go on."""
        kept = _KeptBatches(self._is_first_seen)
        iterator_class, switch = _module._BaseDataLoaderIter, _Switch()
        read_next, make_iterator = iterator_class.__next__, DataLoader.__iter__

        def preloaded(source: Any, read: Callable[[], Any]) -> Any:
            batches = kept.of(source)
            if len(batches) < PRELOADED_BATCHES:
                batches.append(read())
            else:
                batches.append(batches.pop(0))
            return _copied(batches[-1])

        def next_batch(iterator: Any) -> Any:
            if not self._trains_with(iterator._dataset):
                return read_next(iterator)
            if _is_at_end(iterator):
                raise StopIteration
            before = iterator._num_yielded
            batch = preloaded(iterator, lambda: read_next(iterator))
            iterator._num_yielded = before + 1
            return batch

        def begin(loader: Any) -> Iterator[Any]:
            if not self._trains_with(loader.dataset):
                return make_iterator(loader)
            return _SwitchedLoop(loader, make_iterator, read_next, switch, preloaded)

        switch.is_on = True
        undo = [_replaced(iterator_class, "__next__", next_batch), _replaced(DataLoader, "__iter__", begin)]
        try:
            yield
        finally:
            switch.is_on = False
            for restore in reversed(undo):
                restore()

    def _trains_with(self, dataset: Any) -> bool:
        return self._known is None or id(dataset) in self._known or self._is_like_known(dataset)

    def _is_first_seen(self, dataset: Any) -> bool:
        """Whether a data set is one of the script's first, and none that was made anew in a later epoch."""
        return self._settled is None or id(dataset) in self._settled

    def check(self) -> None:
        """Refuse changes that no loader took."""
        if self._changes and not self.changed:
            raise BadInput(f"{', '.join(self._changes)}: the script creates no DataLoader")

    def note(self, batch: Any, waited_s: float, dataset: Any) -> None:
        """Count a batch that the script got."""
        self.batches += 1
        number = id(dataset)
        if self._known is None:
            self._sources[number] = dataset, _key_of(batch) if _length(batch) else False
        if self._trains_with(dataset):
            self._wait_s += waited_s
            self._samples[number] = self._samples.get(number, 0) + _length(batch)

    def _is_like_known(self, dataset: Any) -> bool:
        """Whether a script that makes its data set anew in every epoch trains with this one."""
        if self._known is None or not torch.is_grad_enabled():
            return False
        known = [self._sources[number][0] for number in self._known]
        if not any(type(other) is type(dataset) and _size(other) == _size(dataset) for other in known):
            return False
        self._known.add(id(dataset))
        self._sources[id(dataset)] = dataset, False  # kept, because its id could be reused otherwise
        return True

    def _settle_on(self, dataset: Any, key: _Key) -> None:
        """The shortest way to time and count batches of a single data set."""
        iterator_class = _module._BaseDataLoaderIter
        timed, original = iterator_class.__next__, self._original_next
        if original is None:
            return
        now, wait, count = clocks.perf_counter, self._waits_s.append, self._lengths.append
        guard = self._guard

        def quickly_timed(iterator: Any) -> Any:
            if iterator._dataset is not dataset:
                return timed(iterator)
            began = now()
            batch = original(iterator)
            with guard:
                wait(now() - began)
                try:
                    count((batch if key is None else batch[key]).shape[0])
                except (TypeError, LookupError, AttributeError):  # a batch of another kind
                    count(_length(batch))
            return batch

        self._undo.append(_replaced(iterator_class, "__next__", quickly_timed))

    def _timed_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        now, guard = clocks.perf_counter, self._guard

        def timed(iterator: Any) -> Any:
            began = now()
            if self._asks_for_process(iterator):
                batch, self._process_s[id(iterator._dataset)] = read_alone(lambda: original(iterator))
            else:
                batch = original(iterator)
            with guard:
                self.note(batch, now() - began, iterator._dataset)
                self._note_arguments(iterator)
            return batch

        def untimed(iterator: Any) -> Any:
            with guard:
                self._note_arguments(iterator)
            return original(iterator)

        if self._preloads:
            return untimed
        self._original_next = original
        return timed

    def _asks_for_process(self, iterator: Any) -> bool:
        """Whether the next batch should be prepared on one thread: the second of a data set, before the
        window, where no processes do that."""
        number = id(iterator._dataset)
        is_first = number not in self._samples or number in self._process_s
        return self._known is None and not is_first and not iterator._num_workers

    def _note_arguments(self, iterator: Any) -> None:
        self.workers = iterator._num_workers
        if not self._preloads:
            self.ahead = max(self.ahead, self.workers * (getattr(iterator, "_prefetch_factor", None) or 0))
        self.is_pinned = bool(getattr(iterator, "_pin_memory", False))
        self.is_persistent = bool(getattr(iterator, "_persistent_workers", False))

    def _changed_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def changed(loader: Any, *args: Any, **kwargs: Any) -> None:
            if get_worker_info() is not None:
                original(loader, *args, **kwargs)
                return
            given = signature.bind_partial(loader, *args, **kwargs)
            given.arguments.update(self._changes)
            if not given.arguments.get("num_workers"):
                given.arguments.pop("prefetch_factor", None)
                given.arguments.pop("persistent_workers", None)
            self.changed += 1
            original(*given.args, **given.kwargs)

        return changed

    def _preloaded_iter(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        def cycling(loader: Any) -> Iterator[Any]:
            kept = self._kept.of(loader)
            if not kept:
                kept.extend(itertools.islice(original(loader), PRELOADED_BATCHES))
            try:
                count: int | None = len(loader)
            except TypeError:
                count = None
            return self._cycle(kept, count, loader.dataset)

        return cycling

    def _cycle(self, kept: list[Any], count: int | None, dataset: Any) -> Iterator[Any]:
        """As many batches as the loader has; one without a length goes on for ever."""
        numbers = itertools.count() if count is None else range(count if kept else 0)
        for number in numbers:
            batch = _copied(kept[number % len(kept)])
            self.note(batch, 0.0, dataset)
            yield batch


class _KeptBatches:
    """The few batches that are handed out again and again, by data set and kind of loader: some scripts make
    their loaders in every epoch. A data set that is made in every epoch has the batches of the first like it.
    """

    def __init__(self, is_first_seen: Callable[[Any], bool]) -> None:
        self._is_first_seen = is_first_seen
        self._batches: dict[tuple[int, Hashable], list[Any]] = {}
        self._datasets: list[Any] = []  # kept, because their ids could be reused otherwise

    def of(self, source: Any) -> list[Any]:
        """Those of a loader or of its iterator; empty at first."""
        dataset, kind = _dataset_of(source), _kind_of(source)
        own = id(dataset), kind
        if own in self._batches:
            return self._batches[own]
        if not self._is_first_seen(dataset):
            for (_, other), batches in self._batches.items():
                if other == kind:
                    return batches
        self._datasets.append(dataset)
        return self._batches.setdefault(own, [])

    def clear(self) -> None:
        self._batches.clear()
        self._datasets.clear()


class _Switch:
    """Whether batches are preloaded now."""

    is_on = False


class _SwitchedLoop:
    """A loop over a loader that began while batches were preloaded; later it reads the loader's own."""

    def __init__(
        self,
        loader: Any,
        make_iterator: Callable[[Any], Iterator[Any]],
        read_next: Callable[[Any], Any],  # of the loader's own iterator
        switch: _Switch,
        preloaded: Callable[[Any, Callable[[], Any]], Any],
    ) -> None:
        self._loader, self._make_iterator, self._read_next = loader, make_iterator, read_next
        self._switch, self._preloaded = switch, preloaded
        self._inner: Iterator[Any] | None = None
        self._left: int | None = None
        with contextlib.suppress(TypeError):
            self._left = len(loader)

    def __iter__(self) -> "_SwitchedLoop":
        return self

    def __next__(self) -> Any:
        if self._left is not None:
            if self._left == 0:
                raise StopIteration
            self._left -= 1
        if self._switch.is_on:
            return self._preloaded(self._loader, lambda: self._read_next(self._own()))
        return next(self._own())  # which may be preloaded anew

    def _own(self) -> Iterator[Any]:
        if self._inner is None:
            self._inner = self._make_iterator(self._loader)
        return self._inner


def _is_at_end(iterator: Any) -> bool:
    """Whether a loop that is under way would end now."""
    try:
        return bool(iterator._num_yielded >= len(iterator))
    except TypeError:  # of a stream
        return False


def _dataset_of(source: Any) -> Any:
    return source.dataset if isinstance(source, DataLoader) else source._dataset


def _kind_of(source: Any) -> Hashable:
    """Equal for a loader, its iterators, and loaders that are made like it."""
    dataset = _dataset_of(source)
    order = source._index_sampler
    samples = getattr(order, "sampler", None)
    return type(dataset), _size(dataset), type(order), getattr(order, "batch_size", None), type(samples)


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _replaced(owner: Any, name: str, new: Any) -> Callable[[], None]:
    """Put something in place of an attribute; returns what puts the old one back."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    return lambda: setattr(owner, name, old)


def _copied(batch: Any) -> Any:
    """The same tensors in new containers: scripts take entries out of the batches that they get."""
    if type(batch) is dict:
        return {name: _copied(value) for name, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_copied(value) for value in batch)
    return batch.copy() if isinstance(batch, Mapping) and hasattr(batch, "copy") else batch


def _key_of(batch: Any) -> _Key:
    """Where in a batch its samples are counted: its first tensor; False where that lies deeper inside."""
    if hasattr(batch, "shape"):
        return None
    pairs = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    for key, value in pairs:
        if _length(value):
            return key if hasattr(value, "shape") else False
    return False


def _length(batch: Any) -> int:
    """Samples of a batch: the first dimension of the first tensor in it."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, list | tuple):
        return next(filter(None, map(_length, batch)), 0)
    if isinstance(batch, Mapping):
        return next(filter(None, map(_length, batch.values())), 0)
    return 0
