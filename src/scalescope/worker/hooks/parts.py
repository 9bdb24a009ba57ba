"""The parts of a script's step, and their names in what is recorded."""

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from scalescope import clocks
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER
from scalescope.worker.hooks.hook_guard import Hooks
from scalescope.worker.hooks.inputs import ModelInputs, is_called_directly
from scalescope.worker.hooks.loaders import ScriptLoaders
from scalescope.worker.hooks.optimizers import OptimizerEvents
from scalescope.worker.hooks.wrappers import Wrappers
from scalescope.worker.training.ranges import RangeOf

# ---- Names in a trace for what a script does: its input, forward and backward passes, and optimizer steps


_COMPILED = "_compiled_call_impl"  # what torch calls in place of a module, where it is set


class StepPhases:
    """Sets the ranges of the script's thread while installed."""

    def __init__(self, range_of: RangeOf, modules: Sequence[nn.Module]) -> None:
        self._range_of = range_of
        self._modules = modules
        self._thread = 0  # the script's; while not installed, none
        self._under_way: list[str] = []
        self._range: AbstractContextManager[None] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Name what the script does inside the block, which its steps may enter and leave."""
        self._thread = threading.get_ident()
        undo = [
            *map(self._around_calls, self._modules),
            self._around(torch.autograd, "backward", BACKWARD),
            self._around(dataloader._BaseDataLoaderIter, "__next__", INPUT),
            register_optimizer_step_pre_hook(self._before_optimizer).remove,
        ]
        try:
            yield
        finally:
            self._close()
            self._under_way.clear()
            self._thread = 0
            for remove in reversed(undo):
                remove()

    def begin(self, name: str) -> None:
        """A part of the step begins, inside of another or not."""
        if threading.get_ident() == self._thread:
            self._close()
            self._under_way.append(name)
            self._open()

    def end(self, name: str) -> None:
        """A part of the step ends; the one around it goes on."""
        if threading.get_ident() != self._thread or name not in self._under_way:
            return
        self._close()
        while self._under_way.pop() != name:
            pass
        self._open()

    def end_step(self) -> None:
        """The step ends, and with it all of its parts."""
        self._close()
        self._under_way.clear()
        with self._range_of(CLEAR):
            pass

    @contextmanager
    def _during(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def _open(self) -> None:
        if self._under_way:
            self._range = self._range_of(self._under_way[-1])
            self._range.__enter__()

    def _close(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def _before_optimizer(self, *_: Any) -> None:
        """The step counter signals the end: hooks must not be added while torch calls them."""
        if OPTIMIZER not in self._under_way:  # an optimizer may step another
            self.begin(OPTIMIZER)

    def _around(self, owner: Any, name: str, phase: str) -> Callable[[], None]:
        original = getattr(owner, name)

        def named_call(*args: Any, **kwargs: Any) -> Any:
            with self._during(phase):
                return original(*args, **kwargs)

        setattr(owner, name, named_call)
        return lambda: setattr(owner, name, original)

    def _hook(self, module: nn.Module) -> Callable[[], None]:
        """For a module with a call of its own."""
        before = module.register_forward_pre_hook(lambda *_: self.begin(FORWARD))
        after = module.register_forward_hook(lambda *_: self.end(FORWARD), always_call=True)

        def remove() -> None:
            before.remove()
            after.remove()

        return remove

    def _around_calls(self, module: nn.Module) -> Callable[[], None]:
        if not is_called_directly(module):
            return self._hook(module)
        before = vars(module).get(_COMPILED)
        inner: Callable[..., Any] = getattr(module, _COMPILED) or module._call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._during(FORWARD):
                return inner(*args, **kwargs)

        vars(module)[_COMPILED] = call

        def remove() -> None:
            if before is None:
                vars(module).pop(_COMPILED, None)
            else:
                vars(module)[_COMPILED] = before

        return remove


# ---- What a step of the script consists of: samples, and the host's time in its parts


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
        if self._loaders.batches:  # also where all of them came before the window, and are kept by the script
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
        """Whether loaders hand out something in each step; the step's samples then follow from theirs."""
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
