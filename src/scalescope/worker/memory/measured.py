"""How much memory a rank uses, of the host and of the GPU."""

import contextlib
import re
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalescope.worker.machine.capabilities import use_libraries
from scalescope.worker.memory.allocator import BACKWARD, FORWARD, AllocatorEvent, AllocatorPhase, replay
from scalescope.worker.process.device import device_identity
from scalescope.worker.process.health import is_out_of_memory
from scalescope.worker.training.step import Step

# ---- Bytes of tensors: every storage counted once; for a sharded tensor, the local part


def storages(tensors: Iterable[Any], device: torch.device) -> dict[int, int]:
    """Bytes of the tensors' storages on the device, by address."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own part
        if isinstance(local, Tensor) and local.device.type == device.type:
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def held_bytes(tensors: Iterable[Any], device: torch.device) -> int:
    """Total bytes of all storages."""
    return sum(storages(tensors, device).values())


def gradients_of(module: nn.Module) -> list[Tensor]:
    """The gradients that exist now."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that an optimizer keeps between steps; for a sharded one, those of this rank."""
    local = getattr(
        optimizer, "optim", optimizer
    )  # ZeroRedundancyOptimizer wraps the optimizer that has the state
    kept = [value for state in local.state.values() for value in state.values()]
    return [value for value in kept if isinstance(value, Tensor)]


def tensors_in(batch: Any) -> list[Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for part in batch.values() for tensor in tensors_in(part)]
    if isinstance(batch, tuple | list):
        return [tensor for part in batch for tensor in tensors_in(part)]
    return []


# ---- Memory of a rank on the CPU: its resident memory, and a limit for it


_STATUS = Path("/proc/self/status")
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_FORGET_PEAK = Path("/proc/self/clear_refs")
_SAMPLE_S = 0.002


def status_bytes(name: str) -> int | None:
    """A value of /proc/self/status (VmRSS, VmHWM, VmData); None if the system does not have it."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else None
    return None


def available_bytes() -> int | None:
    """What this process may still allocate, by the host's free memory and its control groups."""
    sizes = [_allowed_bytes(group) for group in _groups()]
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMORY.read_text(), re.MULTILINE)
        sizes.append(int(match[1]) * 1024 if match else None)
    return min((size for size in sizes if size is not None), default=None)


def _groups() -> list[Path]:
    """This process's control group and all its parents; a container may see only its own root."""
    with contextlib.suppress(OSError):
        match = re.search(r"^0::/(.*)$", _GROUP.read_text(), re.MULTILINE)
        group = _GROUPS / (match[1] if match else "")
        return [group, *(parent for parent in group.parents if parent.is_relative_to(_GROUPS))]
    return []


def _allowed_bytes(group: Path) -> int | None:
    """A group's limit minus its use; inactive file pages do not count, since they can be reclaimed."""
    try:
        limit, held = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        match = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return max(0, limit - held + (int(match[1]) if match else 0))


class ResidentPeak:
    """The peak of resident memory since the start: reported by the system, or sampled."""

    def __init__(self) -> None:
        self._highest = status_bytes("VmRSS")
        self._ended = threading.Event()
        self._sampler: threading.Thread | None = None
        try:
            _FORGET_PEAK.write_text("5")
        except OSError:
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._highest = max(self._highest or 0, status_bytes("VmRSS") or 0) or None

    def end(self) -> int | None:
        """The peak so far; sampling stops."""
        if self._sampler is None:
            return status_bytes("VmHWM")
        self._ended.set()
        self._sampler.join()
        return self._highest


class ResidentGauge:
    """Measures resident memory before and after the model, and during the steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: dict[str, int | None] = {}
        self._peak: ResidentPeak | None = None
        self._first_peak: int | None = None  # until the measured step
        self._available: int | None = None

    def before_model(self) -> None:
        use_libraries(self._device)  # their buffers and threads do not belong to the model
        self._marks["before_model"] = status_bytes("VmRSS")
        self._available = available_bytes()

    def room(self) -> int | None:
        """What was available on the host, for all its ranks, before the model."""
        return self._available

    def after_model(self) -> None:
        self._marks["after_model"] = status_bytes("VmRSS")

    def before_steps(self) -> None:
        """Allocations between the model and the steps belong to the benchmark and are not counted."""
        self._marks["before_steps"] = status_bytes("VmRSS")
        self._peak = ResidentPeak()

    def begin_step(self) -> None:
        """The first steps take more: libraries prepare, and DDP has its first buckets beside the lasting."""
        self._first_peak = self._peak.end() if self._peak is not None else None
        self._peak = ResidentPeak()

    def begin_phase(self, name: str) -> None:
        """Only the first forward pass allocates new memory; later ones reuse what the allocator kept."""
        mark = {FORWARD: "before_forward", BACKWARD: "after_forward"}.get(name)
        if mark is not None:
            self._marks.setdefault(mark, status_bytes("VmRSS"))

    def end_backward(self, step: Step) -> None:
        pass

    def end_step(self) -> None:
        pass

    def counters(self) -> dict[str, float | int | str | None]:
        """Bytes by name; None where the difference is not positive or unknown."""
        highest = self._peak.end() if self._peak is not None else None
        return {
            "measured/peak": self._of_training(highest),
            "measured/peak_of_first_steps": self._of_training(self._first_peak),
            "measured/activations": _difference(self._marks, "after_forward", "before_forward"),
            "device/available": self._available,
        }

    def _of_training(self, highest: int | None) -> int | None:
        """What the model and its steps took, of a peak of the process."""
        model = _difference(self._marks, "after_model", "before_model")
        before = self._marks.get("before_steps")
        if model is None or highest is None or before is None:
            return None
        return model + highest - before


def _difference(marks: dict[str, int | None], later: str, earlier: str) -> int | None:
    after, before = marks.get(later), marks.get(earlier)
    if after is None or before is None or after <= before:
        return None
    return after - before


class DataLimit:
    """Limits this process to a number of bytes more than it has now; can be lifted temporarily."""

    def __init__(self, limit: int) -> None:
        self._allowed = (status_bytes("VmData") or 0) + limit

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, allocations beyond the limit fail."""
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._allowed, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Inside, there is no limit, and memory that stays allocated is not counted."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        before = status_bytes("VmData") or 0
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        try:
            yield
        finally:
            grown = max(0, (status_bytes("VmData") or 0) - before)
            resource.setrlimit(resource.RLIMIT_DATA, (soft + grown, hard))


# ---- Memory of a rank on a GPU: the allocator's statistics around a step, and its trace of one step


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
