"""What a step of the script consists of: samples, and the host's time in its parts.

Hooks on the model, the optimizer's beginning and the backward pass cost tens of microseconds per step. They
stay for the warm-up only. In the window nothing but optimizer steps and batches is counted, and the model's
input too where the warm-up showed that it changes from step to step.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from scalescope import clocks
from scalescope.worker.attach.hook_guard import Hooks
from scalescope.worker.attach.inputs import ModelInputs
from scalescope.worker.attach.loaders import ScriptLoaders
from scalescope.worker.attach.optimizers import OptimizerEvents
from scalescope.worker.attach.wrappers import Wrappers


@dataclass(frozen=True)
class CountedSamples:
    """Samples of a window, and where they were counted."""

    count: int
    unit: str
    source: str


class BackwardTime(Hooks):
    """Adds up the host's time in backward passes, and tells ranks without communication when one begins."""

    def __init__(self, wrappers: Wrappers) -> None:
        super().__init__()
        self._wrappers = wrappers
        self.total_s = 0.0

    def install(self) -> None:
        original = torch.autograd.backward
        now = clocks.perf_counter

        def backward(*args: Any, **kwargs: Any) -> None:
            if self._wrappers.has_hooks:
                self._wrappers.before_backward()
            began = now()
            original(*args, **kwargs)
            self.total_s += now() - began

        torch.autograd.backward = backward
        self._undo.append(lambda: setattr(torch.autograd, "backward", original))

    def settle(self) -> None:
        """The time is known; only ranks without communication still need to be told."""
        if not self._wrappers.has_hooks:
            self.remove()


@dataclass(frozen=True)
class _Step:
    """One step of the warm-up."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    calls: int
    samples: int  # that the model got
    loaded: int  # samples that loaders handed out


class StepParts:
    """Looks at the steps of the warm-up, and says what the steps of the window consisted of."""

    def __init__(
        self,
        inputs: ModelInputs,
        loaders: ScriptLoaders,
        optimizers: OptimizerEvents,
        backward: BackwardTime,
    ) -> None:
        self._inputs, self._loaders = inputs, loaders
        self._optimizers, self._backward = optimizers, backward
        self._steps: list[_Step] = []
        self._last = self._sums()
        self._counts_inputs = True

    def begin(self) -> None:
        """The warm-up begins."""
        self._inputs.reset()
        self._loaders.reset()
        self._steps.clear()
        self._last = self._sums()

    def end_step(self) -> None:
        """A step of the warm-up has ended."""
        sums = self._sums()
        values = (new - old for new, old in zip(sums, self._last, strict=True))
        self._steps.append(_Step(*values))  # type: ignore[arg-type]
        self._last = sums

    def skip_steps(self) -> None:
        """The steps since the last one that ended are not looked at."""
        self._last = self._sums()

    def settle(self) -> None:
        """The window begins."""
        self._unit = self._inputs.counted()
        self._counts_inputs = not self._is_regular()
        if self._counts_inputs:
            self._inputs.reset()
        else:
            self._inputs.remove()
        self._backward.settle()
        self._loaders.settle()

    @property
    def micro_batches(self) -> float:
        """Calls of the model per step."""
        return _mean([step.calls for step in self._steps])

    def samples(self, steps: int) -> CountedSamples | None:
        """Samples of the window's steps; None where the script's model got nothing with a first dimension."""
        if len(self._inputs.modules) > 1 and self._loaders.samples:
            return CountedSamples(self._loaders.samples, "samples", "batches of the script's DataLoader")
        counted = self._inputs.counted() if self._counts_inputs else self._unit
        if counted is None:
            return None
        samples, unit, name = counted
        if not self._counts_inputs:
            samples = self._projected(steps)
        dimensions = "first two dimensions" if unit == "tokens" else "first dimension"
        return CountedSamples(samples, unit, f"{dimensions} of the input of {name}")

    def times(self, steps: int) -> dict[str, float]:
        """The host's time in each part of a step; without the optimizer's where it runs the model."""
        forward, backward, optimizer = (
            statistics.median(times) if (times := [getattr(step, name) for step in self._recent]) else 0.0
            for name in ("forward_s", "backward_s", "optimizer_s")
        )
        parts = {"forward": forward, "backward": backward, "optimizer": optimizer}
        if 0.0 < forward + backward <= optimizer:
            del parts["optimizer"]
        if self._loaders.samples:
            parts = {"input": self._loaders.wait_s / steps, **parts}
        return {f"host/{name}_s": time_s for name, time_s in parts.items()}

    @property
    def _recent(self) -> list[_Step]:
        """The later half of the warm-up: the first steps allocate and compile."""
        return self._steps[len(self._steps) // 2 :]

    def _is_regular(self) -> bool:
        """Whether the samples of a step follow from its batches, or are the same in every step."""
        if not self._steps:
            return False
        first = self._steps[0]
        if self._loads_all():
            return all(step.samples * first.loaded == first.samples * step.loaded for step in self._steps)
        return len({step.samples for step in self._steps}) == 1

    def _loads_all(self) -> bool:
        """Whether loaders hand out something in every step, so that its samples follow from theirs."""
        return bool(self._steps) and all(step.loaded > 0 and step.samples > 0 for step in self._steps)

    def _projected(self, steps: int) -> int:
        first = self._steps[0]
        if self._loads_all():
            return round(self._loaders.samples * first.samples / first.loaded)
        return first.samples * steps

    def _sums(self) -> tuple[float, ...]:
        counted = self._inputs.counted()
        return (
            self._inputs.forward_s,
            self._backward.total_s,
            self._optimizers.step_s,
            self._inputs.calls,
            0 if counted is None else counted[0],
            self._loaders.samples,
        )


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
