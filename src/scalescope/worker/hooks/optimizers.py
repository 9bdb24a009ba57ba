"""Steps of a script: the repeating order in which its optimizers step."""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from scalescope import clocks
from scalescope.worker.hooks.hook_guard import HookGuard, Hooks

# ---- Steps from events: the repeating period in the order in which a script's optimizers are stepped


_REPETITIONS = 3
MOST_EVENTS = 256  # without a period until then there is none


def period_of(keys: Sequence[int]) -> tuple[int, ...] | None:
    """The keys of one step, from the first key on; None where the last events do not repeat three times.

    A script may begin with other events, so only the end must be periodic; every key that appears in the
    second half of the events must be part of the period.
    """
    recent = set(keys[len(keys) // 2 :])
    for length in range(1, len(keys) // _REPETITIONS + 1):
        last = tuple(keys[-length:])
        ends = keys[-length * _REPETITIONS :]
        repeats = all(key == last[number % length] for number, key in enumerate(ends))
        if repeats and recent <= set(last):
            return _from_first_key(last)
    return None


def _from_first_key(period: tuple[int, ...]) -> tuple[int, ...]:
    """The rotation that begins with the optimizer that the script stepped first."""
    rotations = [period[start:] + period[:start] for start in range(len(period))]
    return min(rotations)


class StepEnds:
    """Tells which events end a step."""

    def __init__(self) -> None:
        self._keys: deque[int] = deque(maxlen=MOST_EVENTS)
        self.events = 0
        self._period: tuple[int, ...] | None = None
        self._expected = 0
        self.is_broken = False  # an event came that the period does not have

    @property
    def period(self) -> tuple[int, ...] | None:
        return self._period

    def add(self, key: int) -> bool:
        """Whether a step ends with this event; False while no period is known."""
        self.events += 1
        self._keys.append(key)
        if self._period is not None:
            if self._period[self._expected] == key:
                self._expected = (self._expected + 1) % len(self._period)
                return self._expected == 0
            self.is_broken = True
        return False

    def settle(self) -> bool:
        """Look for the period in the events so far; returns whether the last event ends a step."""
        self._period = period_of(list(self._keys))
        self.is_broken = False
        if self._period is None:
            return False
        self._expected = self._position(self._period)
        return self._expected == 0

    def _position(self, period: tuple[int, ...]) -> int:
        """How many events of the period have happened of the step that is under way."""
        length = len(period)
        last = tuple(self._keys)[-length:]
        for done in range(length):
            if period[done:] + period[:done] == last:
                return done
        return 0


# ---- Events of optimizers: the end of each step of each of them, also where a scaler left one out


OnStep = Callable[[Optimizer], None]
_now = clocks.perf_counter


class OptimizerEvents(Hooks):
    """Calls `on_step` after every outermost optimizer step; a wrapper's inner optimizer does not count.

    `step_s` adds up the host's time in optimizer steps, until `settle`; with a closure the model runs inside
    them.
    """

    def __init__(self, on_step: OnStep, guard: HookGuard) -> None:
        super().__init__()
        self._on_step = on_step
        self._guard = guard
        self._outermost: Optimizer | None = None  # whose step is under way
        self._inner: set[int] = set()  # optimizers that others step
        self._is_settled = False
        self._began = 0.0
        self._keys: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Optimizer]] = {}
        self.step_s = 0.0
        self.events = 0
        self.skipped = 0
        self.has_scaler = False  # that scales losses

    def install(self) -> None:
        before = self._before_hook = register_optimizer_step_pre_hook(self._before)
        after = self._after_hook = register_optimizer_step_post_hook(self._after)
        self._undo += [
            before.remove,
            lambda: _remove_while_called(after),
            *map(self._watch_scaler, scalers()),
        ]
        self._is_settled = False

    def settle(self, end_of_step: tuple[Optimizer, Callable[[], None]] | None) -> None:
        """Only count from now on: which optimizers others step is known, and a hook less is faster.

        `end_of_step` is for scripts with one optimizer that is stepped once per step, and what to call then.
        """
        self._before_hook.remove()
        self._is_settled = True
        if end_of_step is not None:
            only, tick = end_of_step
            guard = self._guard

            def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
                with guard:
                    if optimizer is only:
                        self.events += 1
                        tick()
                    else:
                        self._end_of(optimizer)

            _replace_while_called(self._after_hook, after_step)

    def unsettle(self) -> None:
        """Watch steps as before `settle`; torch may be going through the hooks that follow on a step."""
        if self._is_settled:
            self._is_settled = False
            self._outermost = None
            self._before_hook = register_optimizer_step_pre_hook(self._before)
            self._undo.append(self._before_hook.remove)
            _replace_while_called(self._after_hook, self._after)

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
        if self._outermost is None or self._outermost is optimizer:  # the same: its last step raised
            self._outermost = optimizer
            self._began = _now()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._guard:
            self._end_of(optimizer)

    def _end_of(self, optimizer: Optimizer) -> None:
        if self._is_settled:
            if id(optimizer) in self._inner:
                return
        elif self._outermost is optimizer:
            self._outermost = None
            self.step_s += _now() - self._began
        else:
            self._inner.add(id(optimizer))
            return
        self.events += 1
        self._on_step(optimizer)

    def _watch_scaler(self, scaler: type[Any]) -> Callable[[], None]:
        """A scaler skips a step whose gradients overflow; the script's step still ends."""
        original = scaler.step
        events = self

        def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = events.events
            events.has_scaler |= bool(self.is_enabled())
            returned = original(self, optimizer, *args, **kwargs)
            if events.events == before:
                events.skipped += 1
                with events._guard:
                    events._on_step(optimizer)
            return returned

        scaler.step = step

        def undo() -> None:
            scaler.step = original

        return undo


def _remove_while_called(hook: RemovableHandle) -> None:
    """Remove a hook while torch goes through all of them: one that others follow is emptied instead."""
    hooks = hook.hooks_dict_ref()
    if hooks and next(reversed(hooks)) != hook.id:
        _replace_while_called(hook, _do_nothing)
    else:
        hook.remove()


def _replace_while_called(hook: RemovableHandle, function: Callable[..., None]) -> None:
    hooks = hook.hooks_dict_ref()
    if hooks is not None and hook.id in hooks:
        hooks[hook.id] = function


def _do_nothing(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    pass


def scalers() -> list[type[Any]]:
    scaler = getattr(torch.amp, "GradScaler", None)
    return [] if scaler is None else [scaler]
