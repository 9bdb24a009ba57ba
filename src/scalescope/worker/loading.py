"""How long preparing batches takes, and what of it the step waits for."""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as fetching

from scalescope import clocks
from scalescope.cores import usable_cores
from scalescope.worker.machine.rates import one_thread

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 its size is read, nothing is written
_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")
_BATCHES, _PREPARED, _CPU, _COLLATED = range(4)  # columns of a row
_COLUMNS = 4
_DOUBLE = 8
Counters = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How a loader was made."""

    workers: int
    prefetch_factor: int | None  # batches that each process prepares ahead; None without processes
    pin_memory: bool
    persistent_workers: bool = False


def read_alone(read: Callable[[], Any]) -> tuple[Any, float]:
    """A batch, and the seconds that it takes on one thread: the processes of a loader have no more."""
    with one_thread():
        began = clocks.perf_counter()
        batch = read()
        return batch, clocks.perf_counter() - began


class LoaderWatch:
    """Times of a loader's batches since `begin`."""

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        rows = max(1, settings.workers)
        self._times = memoryview(mmap.mmap(-1, rows * _COLUMNS * _DOUBLE)).cast("d")
        self._before = [0.0] * _COLUMNS
        self._shared_memory: tuple[int, int] | None = None
        self._restarts = 0

    @property
    def has_workers(self) -> bool:
        """Whether other processes than the rank prepare batches."""
        return self._settings.workers > 0

    def begin(self) -> None:
        """Start counting; the loader has prefetched what it can by then."""
        self._before = self._totals()
        self._restarts = 0
        self._shared_memory = _free_and_total(_SHARED_MEMORY) if self.has_workers else None

    def restart(self) -> None:
        """The loader begins an epoch."""
        self._restarts += 1

    def timed_collate(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """`collate` under the clock of the process that calls it."""

        def collated(samples: list[Any]) -> Any:
            began = clocks.perf_counter()
            batch = collate(samples)
            self._add(_COLLATED, clocks.perf_counter() - began)
            return batch

        return collated

    def start_worker(self) -> None:
        """Inside a new loader process: put its fetching of batches under the clock.

        torch offers no place for this but the class that fetches, which only this process changes. Where a
        version of torch has no such class, the time is unknown.
        """
        for name in _FETCHERS:
            kind = getattr(fetching, name, None)
            if kind is not None and hasattr(kind, "fetch"):
                kind.fetch = self._timed_fetch(kind.fetch)

    def add_batch(self, prepared_s: float, cpu_s: float) -> None:
        """A batch that this process prepared, and its processor's time for that."""
        self._add(_BATCHES, 1.0)
        self._add(_PREPARED, prepared_s)
        self._add(_CPU, cpu_s)

    def counters(self) -> Counters:
        """Facts since `begin`; times are per batch. What is unknown is left out."""
        settings = self._settings
        facts: Counters = {
            "loader/workers": settings.workers,
            "loader/pinned": int(settings.pin_memory),
            "loader/persistent": int(settings.persistent_workers),
            "loader/cores": usable_cores(),
            "loader/restarts": self._restarts,
        }
        if settings.prefetch_factor is not None:
            facts["loader/prefetch_factor"] = settings.prefetch_factor
        if self._shared_memory is not None:
            facts["loader/shm_free_bytes"], facts["loader/shm_bytes"] = self._shared_memory
        batches, prepared_s, cpu_s, collated_s = (
            now - before for now, before in zip(self._totals(), self._before, strict=True)
        )
        if batches > 0:
            facts["loader/prepare_s"] = prepared_s / batches
            facts["loader/cpu_s"] = cpu_s / batches
            facts["loader/collate_s"] = min(collated_s, prepared_s) / batches
        return facts

    def _timed_fetch(self, fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def fetched(fetcher: Any, index: Any) -> Any:
            began, cpu_began = clocks.perf_counter(), clocks.thread_time()
            batch = fetch(fetcher, index)
            self.add_batch(clocks.perf_counter() - began, clocks.thread_time() - cpu_began)
            return batch

        return fetched

    def _add(self, column: int, amount: float) -> None:
        worker = get_worker_info()
        row = 0 if worker is None else worker.id
        self._times[row * _COLUMNS + column] += amount

    def _totals(self) -> list[float]:
        return [sum(self._times[column::_COLUMNS]) for column in range(_COLUMNS)]


def _free_and_total(path: str) -> tuple[int, int] | None:
    """Bytes of a file system that are free, and all; None where there is none."""
    try:
        status = os.statvfs(path)
    except (OSError, AttributeError):
        return None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
