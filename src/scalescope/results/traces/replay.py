"""Replay: recorded steps run again as a model of host and GPU, to learn how long they would take otherwise.

The host makes its calls one after the other, each after the time that it computed before. The GPU runs what
was launched in order, each stream separately. A call that waits for the GPU holds the host until the GPU has
done everything. The profiler slows the host and not the kernels: one factor on the host's times, fitted to
steps without a profiler, takes that back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

REPLAYS = "replays"  # the table in which a rank stores them
CallKind = Literal["launch", "wait", "input_wait", "allocation"]  # input_wait: a batch is copied
CallPart = Literal["model", "optimizer", "recomputation"]
_LEAST_FACTOR, _MOST_FACTOR = 0.02, 1.5
_HALVINGS = 14
_FUSED_KERNELS = 0.5  # of the time of an optimizer's kernels is left when they are fused, cautiously
_FITS = 1.005  # of the step without a profiler
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call of the host to the driver, and what the GPU did for it."""

    kind: CallKind
    before_s: float  # the host's time since the call before, without what it waited for input
    waited_input_s: float  # of the time since the call before, waiting for input
    call_s: float  # the call itself; of a wait, how long it lasts after the GPU has done everything
    kernel_s: float = 0.0
    stream: str = ""
    follows: tuple[str, ...] = ()  # other streams that must have finished before its kernel begins
    step: int = 0
    part: CallPart = "model"

    @property
    def after(self) -> tuple[str, ...]:
        """All streams that must have finished before its kernel begins."""
        return (self.stream, *self.follows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDelays:
    """The GPU's own pauses, which no host can shorten."""

    latency_s: float = 2e-6  # from a launch to the start of its kernel on an idle GPU
    pause_s: float = 0.0  # between two kernels in its queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is otherwise than recorded."""

    waits: bool = True  # for the GPU
    allocations: bool = True
    host: bool = True  # False: the host takes no time
    input: bool = True
    kernels: bool = True  # False: they take no time
    fused_optimizer: bool = False  # a few kernels update all parameters
    recomputation: bool = True  # of activations in the backward pass

    def keeps(self, kind: CallKind) -> bool:
        """Whether calls of a kind are still made."""
        return {"wait": self.waits, "input_wait": self.input, "allocation": self.allocations}.get(kind, True)

    def shares(self, part: CallPart) -> tuple[float, float]:
        """What is left of the host's times and of the kernels of a part."""
        if not self.kernels:
            return 1.0, 0.0
        if part == "optimizer" and self.fused_optimizer:
            return 0.0, _FUSED_KERNELS
        if part == "recomputation" and not self.recomputation:
            return 0.0, 0.0
        return 1.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Recorded calls that can be run again."""

    calls: Sequence[HostCall]
    delays: LaunchDelays = LaunchDelays()

    def step_s(self, factor: float, changes: Changes | None = None) -> float | None:
        """Seconds per step, from the end of the first to the end of the last; None with fewer than two."""
        ends_s = self._step_ends(factor, changes or Changes())
        if len(ends_s) < _LEAST_STEPS:
            return None
        return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)

    def _step_ends(self, factor: float, changes: Changes) -> list[float]:
        """When the GPU and the host have done each step."""
        host_s, free_s, ends_s = 0.0, dict[str, float](), dict[int, float]()
        factor = factor if changes.host else 0.0
        for call in self.calls:
            of_host, of_kernels = changes.shares(call.part)
            host_s += of_host * factor * call.before_s + (call.waited_input_s if changes.input else 0.0)
            if call.kind == "launch":
                host_s += of_host * factor * call.call_s
                if call.kernel_s > 0.0 and of_kernels > 0.0:
                    free_s[call.stream] = self._kernel_end(call, host_s, free_s, of_kernels)
            elif changes.keeps(call.kind):
                host_s = max(host_s, *free_s.values(), 0.0) + call.call_s
            ends_s[call.step] = max(ends_s.get(call.step, 0.0), host_s, *free_s.values())
        return [ends_s[step] for step in sorted(ends_s)]

    def _kernel_end(
        self, call: HostCall, host_s: float, free_s: Mapping[str, float], of_kernels: float
    ) -> float:
        pause_s = self.delays.pause_s if of_kernels == 1.0 else 0.0
        ready_s = [free_s[stream] + pause_s for stream in call.after if stream in free_s]
        return max(host_s + self.delays.latency_s, *ready_s, 0.0) + of_kernels * call.kernel_s

    def fitted_factor(self, step_s: float) -> float | None:
        """The largest factor on the host's times with which a step takes as long as without a profiler."""
        low, high = _LEAST_FACTOR, _MOST_FACTOR
        least_s = self.step_s(low)
        if least_s is None:
            return None
        if least_s > _FITS * step_s:  # the GPU alone takes longer, so the host hardly matters
            return low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            replayed_s = self.step_s(middle)
            if replayed_s is not None and replayed_s <= _FITS * step_s:
                low = middle
            else:
                high = middle
        return low
