"""What preparing batches takes, and what of it the step waits for."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate, difference_of_means, moved
from scalescope.analysis.training.activity import RankActivity
from scalescope.results.ranks import OBSERVED
from scalescope.results.result import RankRecord

# ---- Loading: how the batches of a rank were prepared, and what the loader had to work with


_LOADER = "loader/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """One rank's loader during the timed steps; times are in seconds per batch, and None is unknown."""

    rank: int
    wait_s: float | None = None  # in which the rank waited for the loader
    copy_s: float | None = None  # of the host, to copy the batch to the device
    first_batch_s: float | None = None
    prepare_s: float | None = None  # getting the samples and collating them, in the process that does it
    process_s: float | None = None  # the same on one thread, as a process of a loader does it
    collate_s: float | None = None  # of prepare_s, collating
    cpu_s: float | None = None  # of prepare_s, computing; the rest is waiting for storage or sleeping
    workers: int | None = None  # processes; None where batches come from an iterable and not from a loader
    prefetch_factor: int | None = None
    pinned: bool | None = None
    persistent: bool | None = None
    restarts: int | None = None  # epochs that began during the timed steps
    cores: int | None = None  # that the rank and its loader may use
    batch_bytes: int | None = None
    shm_free_bytes: int | None = None  # of /dev/shm, through which processes hand over batches

    @property
    def is_iterable(self) -> bool:
        """Whether batches come ready-made from an iterable; loader settings then change nothing. A run
        from before loaders were watched does not tell."""
        return self.workers is None and self.first_batch_s is not None

    @property
    def fetch_s(self) -> float | None:
        """Getting the samples alone."""
        if self.prepare_s is None or self.collate_s is None:
            return None
        return max(0.0, self.prepare_s - self.collate_s)

    @property
    def computes(self) -> float | None:
        """The share of preparing a batch in which a core computes."""
        if self.cpu_s is None or not self.prepare_s:
            return None
        return min(1.0, self.cpu_s / self.prepare_s)

    def workers_to_hide(self, batch_s: float) -> int | None:
        """How many processes prepare batches as fast as one is used up every `batch_s`."""
        process_s = self.process_s or self.prepare_s
        if process_s is None or batch_s <= 0.0:
            return None
        return max(1, math.ceil(process_s / batch_s))

    @property
    def batches_that_fit(self) -> int | None:
        """How many more prepared batches /dev/shm has room for."""
        if not self.batch_bytes or self.shm_free_bytes is None:
            return None
        return self.shm_free_bytes // self.batch_bytes


def loading_of(records: Iterable[RankRecord]) -> LoaderFacts | None:
    """The loader of the rank that waited longest for its batches; None where no rank has a loader."""
    known = [facts for record in records if (facts := _facts_of(record)) is not None]
    return max(known, key=lambda facts: (facts.wait_s or 0.0) + (facts.copy_s or 0.0), default=None)


def _facts_of(record: RankRecord) -> LoaderFacts | None:
    if "loader_s" not in record.counters:
        return _of_command(record)
    return LoaderFacts(
        rank=record.rank,
        wait_s=record.number("loader_s"),
        copy_s=record.number("copy_s"),
        first_batch_s=record.number(f"{_LOADER}first_batch_s"),
        prepare_s=record.number(f"{_LOADER}prepare_s"),
        process_s=record.number(f"{_LOADER}process_s"),
        collate_s=record.number(f"{_LOADER}collate_s"),
        cpu_s=record.number(f"{_LOADER}cpu_s"),
        workers=record.whole(f"{_LOADER}workers"),
        prefetch_factor=record.whole(f"{_LOADER}prefetch_factor"),
        pinned=_switch(record, f"{_LOADER}pinned"),
        persistent=_switch(record, f"{_LOADER}persistent"),
        restarts=record.whole(f"{_LOADER}restarts"),
        cores=record.whole(f"{_LOADER}cores"),
        batch_bytes=record.whole(f"{_LOADER}batch_bytes"),
        shm_free_bytes=record.whole(f"{_LOADER}shm_free_bytes"),
    )


def _of_command(record: RankRecord) -> LoaderFacts | None:
    """The DataLoader that was observed in a command; None where there is none."""
    if not record.counters.get(f"{OBSERVED}loader"):
        return None
    process_s, passes = record.number(f"{_LOADER}process_s"), record.whole(f"{OBSERVED}micro_batches")
    return LoaderFacts(
        rank=record.rank,
        wait_s=record.number("host/input_s"),  # of a step, which is one batch as far as is known
        process_s=None if process_s is None else process_s * max(1, passes or 1),
        workers=record.whole(f"{OBSERVED}loader_workers"),
    )


def _switch(record: RankRecord, name: str) -> bool | None:
    value = record.number(name)
    return None if value is None else bool(value)


# ---- What input adds to a step: the difference to the same job with preloaded batches, as far as input's


_BEYOND = 1.1  # times the host's time in input


def input_cost(
    full: Configuration,
    preloaded: Configuration | None,
    activities: Iterable[RankActivity],
    *,
    has_processes: bool,
) -> Estimate | None:
    """Seconds per step; None where that was not measured.

    Preloaded batches are always the same few, so they also take away what varies with batches: lengths,
    shapes that are compiled anew. Input cannot cost more than the host spends on it, unless the processes
    that prepare batches compete with it for cores.
    """
    if preloaded is None or preloaded is full:
        return None
    difference = difference_of_means(full.mean_steps_s, preloaded.mean_steps_s)
    if difference.value > full.step_time_s.value:  # the step is a geometric mean
        difference = moved(difference, full.step_time_s.value)
    host_s = [activity.host_s["input"] for activity in activities if "input" in activity.host_s]
    competes = has_processes and not full.trial.on_gpu
    if not host_s or competes or difference.value <= _BEYOND * max(host_s):
        return difference
    return moved(difference, max(host_s))
