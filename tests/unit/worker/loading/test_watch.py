"""What a loader's processes tell about their batches, with data sets of every kind."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from scalescope.worker import loading as watching
from scalescope.worker.loading import LoaderSettings, LoaderWatch
from scalescope.worker.training.feeding import Feed, Shard, feed
from scalescope.worker.training.step import Data
from tests.builders.workers import CPU, input_options

ALONE = Shard(index=0, count=1)
SLEEP_S = 0.004


class Slow(Dataset[torch.Tensor]):
    """Samples that have to be waited for."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(SLEEP_S)
        return torch.tensor([float(number)])


class Together(Slow):
    """Samples that are read several at a time, and never by themselves."""

    def __getitem__(self, number: int) -> torch.Tensor:
        raise AssertionError("samples of this data set are read together")

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        time.sleep(SLEEP_S)
        return [torch.tensor([float(number)]) for number in numbers]


class Stream(IterableDataset[torch.Tensor]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(400):
            time.sleep(SLEEP_S)
            yield torch.tensor([float(number)])


def slowly_stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(SLEEP_S)
    return torch.stack(samples)


def counters_of(data: Data, *, batches: int = 2, **options: Any) -> dict[str, Any]:
    stream = feed(data, 2, input_options(**options), CPU, ALONE, 0)
    return dict(_watched(stream, batches))


def _watched(stream: Feed, batches: int) -> dict[str, Any]:
    assert next(stream.batches).shape == (2, 1)
    stream.input_times.begin()
    for _ in range(batches):
        next(stream.batches)
    stream.close()
    return dict(stream.input_times.counters())


@pytest.mark.parametrize(
    ("samples", "workers", "least_s"),
    [
        (Slow(), 0, 2 * SLEEP_S),
        (Together(), 0, SLEEP_S),
        (Stream(), 0, 2 * SLEEP_S),
        (Together(), 2, SLEEP_S),
        (Stream(), 1, 2 * SLEEP_S),
    ],
)
def test_getting_samples_and_collating_are_timed_where_they_happen(
    samples: Any, workers: int, least_s: float
) -> None:
    data = Data(samples=samples, collate=slowly_stacked)
    stream = feed(data, 2, input_options(num_workers=workers), CPU, ALONE, 0)
    counters = _watched(stream, 2)
    assert counters["loader/collate_s"] >= 0.9 * SLEEP_S
    assert counters["loader/prepare_s"] >= counters["loader/collate_s"] + 0.9 * least_s
    assert counters["loader/cpu_s"] <= counters["loader/prepare_s"] - 0.9 * (least_s + SLEEP_S)  # it slept
    assert counters["loader/workers"] == workers


def test_a_rank_that_prepares_batches_tells_what_one_thread_takes_for_one() -> None:
    threads = []

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return slowly_stacked(samples)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for workers in (0, 1):
            stream = feed(
                Data(samples=Slow(), collate=collate), 2, input_options(num_workers=workers), CPU, ALONE, 0
            )
            for _ in range(3):
                next(stream.batches)
            counters = _watched(stream, 2)
            assert ("loader/process_s" in counters) == (workers == 0)
            if not workers:
                assert counters["loader/process_s"] >= 0.9 * 3 * SLEEP_S
                assert threads == [2, 1, 2, 2, 2, 2]
    finally:
        torch.set_num_threads(before)


def test_no_batch_is_prepared_on_one_thread_once_steps_count() -> None:
    stream = feed(Data(samples=Together()), 2, input_options(num_workers=0), CPU, ALONE, 0)
    assert "loader/process_s" not in _watched(stream, 2)


def test_the_loader_s_means_are_recorded() -> None:
    counters = counters_of(Data(samples=Together()), num_workers=1, prefetch_factor=3)
    assert counters["loader/prefetch_factor"] == 3
    assert counters["loader/pinned"] == 0
    assert counters["loader/cores"] >= 1
    assert counters["loader/batch_bytes"] == 8
    assert counters["loader/first_batch_s"] > 0.0
    assert counters["loader/shm_bytes"] >= counters["loader/shm_free_bytes"] > 0


def test_a_loader_without_processes_prefetches_nothing_and_shares_no_memory() -> None:
    names = set(counters_of(Data(samples=Together()), num_workers=0))
    assert not names & {"loader/prefetch_factor", "loader/shm_bytes", "loader/shm_free_bytes"}


class Few(Together):
    def __len__(self) -> int:
        return 4


def test_a_data_set_that_begins_again_restarts_its_loader() -> None:
    assert counters_of(Data(samples=Few()), num_workers=0, batches=5)["loader/restarts"] == 2
    assert counters_of(Data(samples=Slow()), num_workers=0, batches=5)["loader/restarts"] == 0


def test_a_torch_without_these_fetchers_leaves_the_time_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_FETCHERS", ("_Gone",))
    counters = counters_of(Data(samples=Together()), num_workers=1)
    assert "loader/prepare_s" not in counters
    assert counters["loader/workers"] == 1
    assert counters["loader/prefetch_factor"] == 2  # torch's default


def test_times_are_per_batch_and_since_the_beginning() -> None:
    watch = LoaderWatch(LoaderSettings(workers=0, prefetch_factor=None, pin_memory=True))
    watch.add_batch(1.0, 0.5)
    watch.begin()
    for prepared_s in (0.2, 0.4):
        watch.add_batch(prepared_s, 0.1)
    counters = watch.counters()
    assert counters["loader/prepare_s"] == pytest.approx(0.3)
    assert counters["loader/cpu_s"] == pytest.approx(0.1)
    assert counters["loader/pinned"] == 1
    watch.begin()
    assert "loader/prepare_s" not in watch.counters()


def test_a_system_without_shared_memory_has_no_figures_of_it() -> None:
    assert watching._free_and_total("/nowhere/at/all") is None
