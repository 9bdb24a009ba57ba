"""Moments: points in time of the host, or of the work queued on a GPU, read once all of them have passed."""

from typing import Any, Protocol

import torch

from scalescope import clocks

_CYCLES_PER_S = 2e9  # about; a GPU with a slower clock pauses longer


class Moments(Protocol):
    """Where moments come from."""

    def mark(self) -> Any:
        """This moment; on a GPU when the work queued so far is done."""
        ...

    def begin_step(self) -> Any:
        """The moment at which a step begins, which may follow a pause."""
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
        return clocks.perf_counter()

    def begin_step(self) -> float:
        return self.mark()

    def finish(self) -> None:
        """The host's clock never lags behind."""

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuMoments:
    """Events in the current stream: marking one neither stops the GPU nor waits for it.

    With `head_start_s`, the GPU pauses before each step for so long, in which the host queues the step's
    work: what is marked then is the GPU's own pace, even where the GPU usually waits for the host.
    """

    def __init__(self, head_start_s: float = 0.0) -> None:
        self._pause_cycles = int(head_start_s * _CYCLES_PER_S)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin_step(self) -> torch.cuda.Event:
        if self._pause_cycles:
            torch.cuda._sleep(self._pause_cycles)
        return self.mark()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3


def moments_of(device: torch.device, head_start_s: float = 0.0) -> Moments:
    """The moments that fit a device; a host needs no head start over itself."""
    return GpuMoments(head_start_s) if device.type == "cuda" else HostMoments()
