"""Moments: points in time of the host, or of the work queued on a GPU, read once all of them have passed."""

import time
from typing import Any, Protocol

import torch


class Moments(Protocol):
    """Where moments come from."""

    def mark(self) -> Any:
        """This moment; on a GPU when the work queued so far is done."""
        ...

    def finish(self) -> None:
        """Wait until all moments have passed."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two moments that have passed."""
        ...


class HostMoments:
    """The host's clock."""

    def mark(self) -> float:
        return time.perf_counter()

    def finish(self) -> None:
        """The host's clock never lags behind."""

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuMoments:
    """Events in the current stream: marking one neither stops the GPU nor waits for it."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3


def moments_of(device: torch.device) -> Moments:
    """The moments that fit a device."""
    return GpuMoments() if device.type == "cuda" else HostMoments()
