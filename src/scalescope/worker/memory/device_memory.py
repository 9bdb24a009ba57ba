"""Memory of a rank on a GPU: the allocator's statistics around a step, and its trace of one step."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from scalescope.worker.machine.libraries import use_libraries
from scalescope.worker.memory.allocator_trace import BACKWARD, FORWARD, AllocatorEvent, AllocatorPhase, replay
from scalescope.worker.memory.tensor_bytes import gradients_of, storages
from scalescope.worker.process.device import device_identity
from scalescope.worker.process.health.out_of_memory import is_out_of_memory
from scalescope.worker.training.step import Step

_MOST_EVENTS = 1_000_000
_LONGEST_REASON = 300


class DeviceGauge:
    """Measures the caching allocator by its statistics, and by its trace where that works."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._trace = AllocatorTrace(device)
        self._counters: dict[str, float | int | str | None] = {}
        self._gradients: dict[int, int] = {}
        self._before_forward = 0

    def before_model(self) -> None:
        """Everything allocated before the model belongs to the libraries."""
        use_libraries(self._device)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what earlier trials of this process cached would count against a limit
        self._counters["measured/library"] = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def room(self) -> int | None:
        """What torch has reserved plus what is free on the GPU."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free) + torch.cuda.memory_reserved(self._device)

    def after_model(self) -> None:
        pass

    def before_steps(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def begin_step(self) -> None:
        torch.cuda.synchronize(self._device)
        self._counters["measured/peak_of_first_steps"] = torch.cuda.max_memory_allocated(self._device)
        self._trace.begin()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._counters["measured/before_step"] = torch.cuda.memory_allocated(self._device)

    def begin_phase(self, name: str) -> None:
        now = torch.cuda.memory_allocated(self._device)
        if name == FORWARD:
            self._before_forward = now
        elif name == BACKWARD:
            self._counters["measured/activations"] = max(0, now - self._before_forward)
        self._trace.mark(name)

    def end_backward(self, step: Step) -> None:
        self._gradients = storages(gradients_of(step.module), self._device)

    def end_step(self) -> None:
        torch.cuda.synchronize(self._device)
        self._counters["measured/peak"] = torch.cuda.max_memory_allocated(self._device)
        # Without the allocator's rounding.
        requested = torch.cuda.memory_stats(self._device).get("requested_bytes.all.peak")
        self._counters["measured/peak_requested"] = None if requested is None else int(requested)
        self._counters |= self._trace.end(self._gradients)

    def counters(self) -> dict[str, float | int | str | None]:
        """Bytes by name, and the reason if some are missing."""
        torch.cuda.synchronize(self._device)
        self._counters.setdefault("measured/peak", torch.cuda.max_memory_allocated(self._device))
        free, total = torch.cuda.mem_get_info(self._device)
        self._counters["measured/reserved"] = torch.cuda.memory_reserved(self._device)
        shared = {"device/identity": device_identity(self._device)}  # ranks may share a GPU
        return self._counters | {"device/total": total, "device/free": free} | shared


class AllocatorTrace:
    """The allocator's list of events; an error here becomes a reason in the counters, not a failure."""

    def __init__(self, device: torch.device) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._phases: list[AllocatorPhase] = []
        self._first = 0
        self._problem: str | None = None

    def begin(self) -> None:
        self._guarded(self._begin)

    def mark(self, name: str) -> None:
        self._guarded(lambda: self._phases.append(AllocatorPhase(name, len(self._events()) - self._first)))

    def end(self, gradients: dict[int, int]) -> dict[str, float | int | str | None]:
        """What was allocated at the peak of the step."""
        counters: dict[str, float | int | str | None] = {}
        self._guarded(lambda: counters.update(self._breakdown(gradients)))
        with contextlib.suppress(Exception):  # recording must end, also after an error
            torch.cuda.memory._record_memory_history(None)
        return {"trace/problem": self._problem} if self._problem is not None else counters

    def _begin(self) -> None:
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=_MOST_EVENTS
        )
        self._first = len(self._events())

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][self._index]
        return events

    def _breakdown(self, gradients: dict[int, int]) -> dict[str, int]:
        raw = self._events()
        if len(raw) >= _MOST_EVENTS:
            raise RuntimeError(f"one step makes more than {_MOST_EVENTS} allocator events")
        events = [
            AllocatorEvent(str(entry["action"]), int(entry.get("addr", 0)), int(entry["size"]))
            for entry in raw[self._first :]
        ]
        if not any(event.action == "alloc" for event in events):
            raise RuntimeError("the allocator recorded no events")
        breakdown = replay(events, self._phases, gradients)
        return {
            "trace/growth": breakdown.growth,
            "trace/activations": breakdown.activations,
            "trace/gradients": breakdown.gradients,
            "trace/temporary": breakdown.temporary,
            "trace/given_back": breakdown.given_back,
            "trace/held_after_forward": breakdown.held_after_forward,
        }

    def _guarded(self, act: Callable[[], Any]) -> None:
        if self._problem is not None:
            return
        try:
            act()
        except Exception as error:  # a private interface: if it fails, the statistics remain
            if is_out_of_memory(error):
                raise
            reason = (str(error).splitlines() or [""])[0]
            self._problem = f"{type(error).__name__}: {reason}"[:_LONGEST_REASON]
