"""Cores are dealt out to CPU ranks without overlap, or not at all."""

import os

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.local.launcher import cpus_for


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
