"""The caching allocator of a GPU: how often it had to ask the driver while timed steps ran."""

import torch

# Counts since the process began.
_EVENTS = {
    "retries": "num_alloc_retries",
    "device_allocations": "num_device_alloc",
    "device_releases": "num_device_free",
    "out_of_memory": "num_ooms",
}
_BYTES = {
    "reserved_bytes": "reserved_bytes.all.current",
    "allocated_bytes": "allocated_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
}


class AllocatorWatch:
    """Compares the allocator's statistics before and after timed steps; on the CPU there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: dict[str, int] = {}
        self._after: dict[str, int] = {}
        self._events: dict[str, int] = {}

    def begin(self) -> None:
        self._before = self._statistics()

    def end(self) -> None:
        self._after = self._statistics()
        for name, key in _EVENTS.items():
            if key in self._before and key in self._after:
                count = self._after[key] - self._before[key]
                self._events[name] = self._events.get(name, 0) + count

    def _statistics(self) -> dict[str, int]:
        return dict(torch.cuda.memory_stats(self._device)) if self._device.type == "cuda" else {}

    def counters(self) -> dict[str, float | int | str | None]:
        """What other allocators do not count is left out."""
        held = {name: int(self._after[key]) for name, key in _BYTES.items() if key in self._after}
        return {f"allocator/{name}": value for name, value in {**self._events, **held}.items()}
