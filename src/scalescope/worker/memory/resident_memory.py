"""Memory of a rank on the CPU: its resident memory, and a limit for it."""

import contextlib
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from scalescope.worker.machine.libraries import use_libraries
from scalescope.worker.memory.allocator_trace import BACKWARD, FORWARD
from scalescope.worker.training.step import Step

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
    """Limits this process to so many bytes more than it has now; can be lifted temporarily."""

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
