"""Cores are dealt out to CPU ranks without overlap, or not at all."""

import os

import pytest

from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.local.pinning import cpus_for


def _trial(ranks: int, threads: int, device: str = "cpu") -> Trial:
    return Trial(settings={"world_size": ranks, "threads_per_rank": threads, "device": device})


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six cores that do not begin at 0, in no order."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 4, 5, 8, 6, 7}, raising=False)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("ranks", "threads", "expected"),
    [
        (1, 6, [[4, 5, 6, 7, 8, 9]]),
        (2, 3, [[4, 5, 6], [7, 8, 9]]),
        (2, 2, [[4, 5], [7, 8]]),
        (6, 1, [[4], [5], [6], [7], [8], [9]]),
        (2, 4, [[], []]),
        (7, 1, [[]] * 7),
    ],
)
def test_ranks_get_cores_of_their_own(ranks: int, threads: int, expected: list[list[int]]) -> None:
    assert [cpus_for(_trial(ranks, threads), rank) for rank in range(ranks)] == expected


@pytest.mark.usefixtures("cores")
def test_ranks_on_gpus_are_not_pinned() -> None:
    assert cpus_for(_trial(2, 1, "cuda"), 0) == []


def test_a_system_without_affinity_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpus_for(_trial(1, 1), 0) == []


SOCKETS = {"a": frozenset({4, 5, 6}), "b": frozenset({7, 8, 9})}


def _gpus(*sockets: str) -> list[Gpu]:
    return [
        Gpu(index=index, name="GPU", memory_bytes=1, uuid=f"{index}", pci_bus=socket)
        for index, socket in enumerate(sockets)
    ]


def _pinned(ranks: int, gpus: list[Gpu], **settings: object) -> list[list[int]]:
    trial = Trial(settings={**_trial(ranks, 1, "cuda").settings, "pin_cores": "yes", **settings})
    return [
        cpus_for(trial, rank, gpus, lambda bus: None if bus is None else SOCKETS.get(bus))
        for rank in range(ranks)
    ]


@pytest.mark.usefixtures("cores")
def test_a_rank_is_pinned_next_to_its_own_gpu() -> None:
    assert _pinned(2, _gpus("b", "a")) == [[7, 8, 9], [4, 5, 6]]
    assert _pinned(2, _gpus("b", "b")) == [[7], [8]]
    assert _pinned(1, _gpus("b", "a")) == [[7, 8, 9]]


@pytest.mark.usefixtures("cores")
def test_the_parts_of_a_split_gpu_share_the_cores_next_to_it() -> None:
    assert _pinned(3, _gpus("b", "a"), split_gpu=3) == [[7], [8], [9]]


@pytest.mark.usefixtures("cores")
def test_without_a_topology_gpu_ranks_share_all_cores() -> None:
    assert _pinned(2, _gpus("b", "unknown")) == [[4, 5, 6], [7, 8, 9]]
    assert _pinned(2, []) == [[4, 5, 6], [7, 8, 9]]
