"""Events of optimizers: the end of each step of each of them, also where a scaler left one out."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

OnStep = Callable[[Optimizer], None]


class OptimizerEvents:
    """Calls `on_step` after every outermost optimizer step; a wrapper's inner optimizer does not count.

    `step_s` adds up the host's time in optimizer steps; with a closure the model runs inside them.
    """

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._nested: list[int] = []
        self._began = 0.0
        self._keys: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Optimizer]] = {}
        self.step_s = 0.0
        self.events = 0
        self.skipped = 0
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        before = register_optimizer_step_pre_hook(self._before)
        after = register_optimizer_step_post_hook(self._after)
        self._undo += [before.remove, after.remove, *map(self._watch_scaler, _scalers())]

    def remove(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    def key_of(self, optimizer: Optimizer) -> int:
        """The number of an optimizer, in the order of their first steps."""
        identity = id(optimizer)
        if identity not in self._keys or self._alive[identity]() is not optimizer:
            self._keys[identity] = len(self._keys)
            self._alive[identity] = weakref.ref(optimizer)
        return self._keys[identity]

    @property
    def optimizers(self) -> list[Optimizer]:
        alive = (reference() for reference in self._alive.values())
        return [optimizer for optimizer in alive if optimizer is not None]

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._nested:  # its last step raised
            del self._nested[self._nested.index(id(optimizer)) :]
        self._nested.append(id(optimizer))
        if len(self._nested) == 1:
            self._began = time.perf_counter()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._nested and self._nested[0] != id(optimizer):
            if id(optimizer) in self._nested:
                del self._nested[self._nested.index(id(optimizer)) :]
            return
        self._nested.clear()
        self.step_s += time.perf_counter() - self._began
        self.events += 1
        self._on_step(optimizer)

    def _watch_scaler(self, scaler: type[Any]) -> Callable[[], None]:
        """A scaler leaves out a step whose gradients overflow: the script's step ends all the same."""
        original = scaler.step
        events = self

        def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = events.events
            returned = original(self, optimizer, *args, **kwargs)
            if events.events == before:
                events.skipped += 1
                events._on_step(optimizer)
            return returned

        scaler.step = step

        def undo() -> None:
            scaler.step = original

        return undo


def _scalers() -> list[type[Any]]:
    scaler = getattr(torch.amp, "GradScaler", None)
    return [] if scaler is None else [scaler]
