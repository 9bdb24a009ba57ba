"""The script's DataLoaders."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scalescope.worker.attach.hook_guard import HookGuard
from scalescope.worker.attach.loaders import ScriptLoaders


def _raise(error: Exception) -> None:
    raise error


GUARD = HookGuard(_raise)


def installed(changes: dict[str, Any], *, preloads: bool = False) -> ScriptLoaders:
    watch = ScriptLoaders(changes, GUARD, preloads=preloads)
    watch.install()
    return watch


@pytest.fixture
def samples() -> TensorDataset:
    return TensorDataset(torch.arange(20).float())


def test_batches_are_counted(samples: TensorDataset) -> None:
    watch = installed({})
    try:
        assert [len(batch[0]) for batch in DataLoader(samples, batch_size=8)] == [8, 8, 4]
    finally:
        watch.remove()
    assert (watch.batches, watch.samples) == (3, 20)
    list(DataLoader(samples, batch_size=8))
    assert watch.batches == 3


def test_preloaded_batches_have_the_length_of_the_loader(samples: TensorDataset) -> None:
    watch = installed({}, preloads=True)
    try:
        loader = DataLoader(samples, batch_size=1, shuffle=True)
        first = [float(batch[0]) for batch in loader]
        again = [float(batch[0]) for batch in loader]
    finally:
        watch.remove()
    assert len(first) == len(again) == 20
    assert first == again
    assert len(set(first)) == 8


class Endless(IterableDataset[torch.Tensor]):
    """Has no length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(3)


def test_a_loader_without_length_goes_on() -> None:
    watch = installed({}, preloads=True)
    try:
        iterator = iter(DataLoader(Endless(), batch_size=2))
        assert [len(next(iterator)) for _ in range(20)] == [2] * 20
    finally:
        watch.remove()


def test_scripts_may_take_entries_out_of_preloaded_batches() -> None:
    watch = installed({}, preloads=True)
    try:
        data = [{"inputs": torch.ones(2), "labels": torch.zeros(1)} for _ in range(4)]
        loader: DataLoader[Any] = DataLoader(data, batch_size=2)  # type: ignore[arg-type]
        labels = [batch.pop("labels") for _ in range(3) for batch in loader]
    finally:
        watch.remove()
    assert len(labels) == 6


def test_arguments_are_changed_and_prefetching_needs_processes(samples: TensorDataset) -> None:
    watch = installed({"num_workers": 0, "pin_memory": False, "prefetch_factor": 4})
    try:
        loader = DataLoader(samples, 4, False, num_workers=2, persistent_workers=True)
    finally:
        watch.remove()
    assert (loader.num_workers, loader.pin_memory, loader.prefetch_factor) == (0, False, None)
    assert watch.changed == 1


@pytest.mark.parametrize(
    "collate",
    [
        None,
        lambda samples: torch.stack([sample[0] for sample in samples]),
        lambda samples: {"name": "x", "inputs": torch.stack([sample[0] for sample in samples])},
        lambda samples: ((torch.stack([sample[0] for sample in samples]),), 0),
    ],
    ids=["list", "tensor", "mapping", "nested"],
)
def test_settled_loaders_count_the_data_of_the_training_only(samples: TensorDataset, collate: Any) -> None:
    watch = installed({})
    validation = TensorDataset(torch.zeros(7))
    try:
        loader = DataLoader(samples, batch_size=8, collate_fn=collate)
        list(loader)
        watch.settle()
        assert watch.samples == 0
        list(loader)
        list(DataLoader(validation, batch_size=2))
        assert watch.samples == 20
        assert watch.wait_s > 0
    finally:
        watch.remove()
