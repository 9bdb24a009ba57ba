"""Names in a trace for what a script does: its input, forward and backward passes, and optimizer steps.

A trace is read by the same ranges as that of our own ranks. They follow each other and never lie inside each
other, also where a script runs its model inside an optimizer's step.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER
from scalescope.worker.attach.inputs import is_called_directly
from scalescope.worker.training.ranges import RangeOf

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
        """Its end is told by who counts optimizer steps: hooks must not be added while torch calls them."""
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
