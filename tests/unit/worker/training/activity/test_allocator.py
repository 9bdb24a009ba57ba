"""What the allocator did is the difference of its statistics; where there are none, nothing is known."""

from typing import Any

import pytest
import torch

from scalescope.worker.training.activity.allocator import AllocatorWatch

BEFORE = {"num_alloc_retries": 2, "num_device_alloc": 10, "num_device_free": 4, "num_ooms": 0}
AFTER = {
    "num_alloc_retries": 5,
    "num_device_alloc": 16,
    "num_device_free": 4,
    "num_ooms": 0,
    "reserved_bytes.all.current": 100,
    "allocated_bytes.all.current": 60,
    "inactive_split_bytes.all.current": 30,
}


def test_on_the_cpu_nothing_is_known() -> None:
    watch = AllocatorWatch(torch.device("cpu"))
    watch.begin()
    watch.end()
    assert watch.counters() == {}


def _watched(monkeypatch: pytest.MonkeyPatch, *statistics: dict[str, int]) -> dict[str, Any]:
    """What a watch tells after windows that began and ended with these statistics."""
    readings = iter(statistics)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: next(readings))
    watch = AllocatorWatch(torch.device("cuda", 0))
    for _ in range(len(statistics) // 2):
        watch.begin()
        watch.end()
    return watch.counters()


def test_events_are_counted_in_all_windows_and_bytes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    between = {**AFTER, "num_device_alloc": 100}
    later = {**between, "num_device_alloc": 101, "allocated_bytes.all.current": 50}
    counters = _watched(monkeypatch, BEFORE, AFTER, between, later)
    assert counters == {
        "allocator/retries": 3,
        "allocator/device_allocations": 7,
        "allocator/device_releases": 0,
        "allocator/out_of_memory": 0,
        "allocator/reserved_bytes": 100,
        "allocator/allocated_bytes": 50,
        "allocator/inactive_split_bytes": 30,
    }


def test_an_allocator_without_these_statistics_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watched(monkeypatch, {}, {}) == {}
