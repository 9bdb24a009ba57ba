"""The allocator's trace: a breakdown of the peak, or a reason, never a failure."""

from functools import partial
from typing import Any

import pytest
import torch

from scalescope.worker.memory import measured
from scalescope.worker.memory.allocator import BACKWARD, FORWARD, AllocatorEvent, AllocatorPhase, replay
from scalescope.worker.memory.measured import AllocatorTrace

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


def test_an_interface_that_has_changed_or_recorded_nothing_is_a_reason_of_one_line(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem() -> Any:
        trace = AllocatorTrace(CUDA)
        trace.begin()
        trace.mark("forward")
        return trace.end({})

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such thing\nand a trace\nof the driver")

    assert problem() == {"trace/problem": "RuntimeError: the allocator recorded no events"}
    assert allocator.recording == ["all", None]  # recording has ended all the same
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", None)
    assert problem() == {"trace/problem": "TypeError: 'NoneType' object is not callable"}
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fail)
    assert problem() == {"trace/problem": "RuntimeError: no such thing"}


def test_what_earlier_trials_left_is_given_back_before_a_limit_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(measured, "use_libraries", lambda device: done.append("libraries"))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: done.append("read") or 7)
    measured.DeviceGauge(CUDA).before_model()
    assert done == ["libraries", "synchronize", "empty_cache", "read", "reset_peak_memory_stats"]


_alloc = partial(AllocatorEvent, "alloc")
_freed = partial(AllocatorEvent, "free_requested")
_free_done = partial(AllocatorEvent, "free_completed")
PHASES = [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 5), AllocatorPhase("optimizer", 11)]
STEP = [
    _alloc(0x10, 100),  # kept for backward
    _alloc(0x20, 40),  # gone before forward ends
    _freed(0x20, 40),
    _free_done(0x20, 40),
    _alloc(0x30, 60),  # kept for backward
    _alloc(0x40, 70),  # a gradient
    _alloc(0x50, 500),  # in passing: the peak
    _freed(0x50, 500),
    _free_done(0x50, 500),
    _freed(0x30, 60),
    _freed(0x10, 100),
    _freed(0x40, 70),
]


def test_the_peak_is_split_by_what_lives_there() -> None:
    breakdown = replay(STEP, PHASES, [0x40])
    assert breakdown.growth == 100 + 60 + 70 + 500
    assert (breakdown.activations, breakdown.gradients, breakdown.temporary) == (160, 70, 500)
    assert breakdown.held_after_forward == 160
    assert breakdown.given_back == 0


def test_parts_and_what_was_given_back_add_up() -> None:
    events = [_freed(0x1, 30), _free_done(0x1, 30), *STEP]
    phases = [AllocatorPhase(phase.name, phase.start + 2 if phase.start else 0) for phase in PHASES]
    breakdown = replay(events, phases, [0x40])
    assert breakdown.given_back == 30  # reported twice, counted once
    assert (
        breakdown.growth
        == breakdown.activations + breakdown.gradients + breakdown.temporary - breakdown.given_back
    )


def test_an_address_used_again_is_another_block() -> None:
    events = [_alloc(0x10, 8), _freed(0x10, 8), _free_done(0x10, 8), _alloc(0x10, 90)]
    breakdown = replay(events, [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 3)], [0x10])
    assert (breakdown.growth, breakdown.gradients, breakdown.temporary) == (90, 90, 0)


def test_a_block_where_a_gradient_came_to_lie_later_is_no_gradient() -> None:
    events = [_alloc(0x10, 90), _freed(0x10, 90), _alloc(0x10, 8)]
    breakdown = replay(events, [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 2)], [0x10])
    assert (breakdown.temporary, breakdown.gradients) == (90, 0)


def test_several_forward_passes_each_hold_their_own() -> None:
    events = [_alloc(0x10, 10), _freed(0x10, 10), _alloc(0x20, 20), _freed(0x20, 20)]
    phases = [AllocatorPhase(name, at) for at, name in enumerate((FORWARD, BACKWARD, FORWARD, BACKWARD))]
    breakdown = replay(events, phases, [])
    assert (breakdown.activations, breakdown.held_after_forward) == (20, 20)


def test_a_step_that_takes_nothing_has_no_peak() -> None:
    breakdown = replay([AllocatorEvent("segment_alloc", 1, 1 << 20)], PHASES[:1], [])
    assert breakdown.growth == breakdown.activations == breakdown.temporary == 0
