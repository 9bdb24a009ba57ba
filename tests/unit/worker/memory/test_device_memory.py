"""The allocator's trace through a made-up torch: a breakdown, or a reason, never a failure."""

from typing import Any

import pytest
import torch

from scalescope.worker.memory import device_memory
from scalescope.worker.memory.device_memory import AllocatorTrace

CUDA = torch.device("cuda:0")


class Allocator:
    """Stands in for torch's private interface."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [{"action": "alloc", "addr": 1, "size": 999}]  # of earlier times
        self.recording: list[Any] = []

    def record(self, enabled: Any = "all", **_: Any) -> None:
        self.recording.append(enabled)

    def snapshot(self) -> dict[str, Any]:
        self.events.append({"action": "snapshot", "size": 0})
        return {"device_traces": [list(self.events)]}

    def add(self, action: str, address: int, size: int) -> None:
        self.events.append({"action": action, "addr": address, "size": size})


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", made.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", made.snapshot)
    return made


def test_a_step_is_broken_down(allocator: Allocator) -> None:
    trace = AllocatorTrace(CUDA)
    trace.begin()
    trace.mark("forward")
    allocator.add("alloc", 16, 100)
    trace.mark("backward")
    allocator.add("alloc", 32, 60)
    allocator.add("alloc", 48, 10)
    allocator.add("free_requested", 48, 10)
    trace.mark("optimizer")
    counters = trace.end({32: 60})
    assert counters["trace/growth"] == 170
    assert (counters["trace/activations"], counters["trace/gradients"], counters["trace/temporary"]) == (
        100,
        60,
        10,
    )
    assert allocator.recording == ["all", None]


def test_an_interface_that_has_changed_is_a_reason(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", None)
    trace = AllocatorTrace(CUDA)
    trace.begin()
    trace.mark("forward")
    assert trace.end({}) == {"trace/problem": "TypeError: 'NoneType' object is not callable"}


def test_no_events_are_a_reason(allocator: Allocator) -> None:
    trace = AllocatorTrace(CUDA)
    trace.begin()
    trace.mark("forward")
    assert trace.end({}) == {"trace/problem": "RuntimeError: the allocator recorded no events"}
    assert allocator.recording == ["all", None]  # recording has ended all the same


def test_a_reason_is_one_line(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such thing\nand a trace\nof the driver")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fail)
    trace = AllocatorTrace(CUDA)
    trace.begin()
    assert trace.end({}) == {"trace/problem": "RuntimeError: no such thing"}


def test_what_earlier_trials_left_is_given_back_before_a_limit_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(device_memory, "use_libraries", lambda device: done.append("libraries"))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: done.append("read") or 7)
    device_memory.DeviceGauge(CUDA).before_model()
    assert done == ["libraries", "synchronize", "empty_cache", "read", "reset_peak_memory_stats"]
