"""Losses of a script: what it passes to `backward`, to compare levers that change numerical results."""

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalescope.worker.hooks.hook_guard import HookGuard, Hooks
from scalescope.worker.hooks.imports import after_import
from scalescope.worker.hooks.optimizers import scalers

_COMPILER = "torch._dynamo"
_MOST = 20_000  # backward passes whose losses are kept; on a GPU each keeps 512 bytes
_MOST_BYTES = 512  # of the storage that a kept loss may share


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLosses:
    """Losses by step: those before the window, and those of the window."""

    warmup: list[float]
    window: list[float]
    first_bad: int | None = None  # the step from which they are left out: its loss was not finite


class ScriptLosses(Hooks):
    """Keeps the loss of every outermost backward pass, from the first step on until `stop`.

    With a GradScaler it is what was handed to its `scale`. Nothing is read before `by_step`: that would wait
    for the device. `position` counts what ends steps; each loss is kept with what it returns.
    """

    def __init__(self, position: Callable[[], tuple[int, ...]], *, copies: bool) -> None:
        super().__init__()
        self._guard = HookGuard(lambda error: self._give_up())  # the measurement goes on without losses
        self._position = position
        self._copies = copies  # a CUDA graph overwrites its outputs
        self._kept: list[tuple[tuple[int, ...], Tensor]] = []
        self._scaled: list[Tensor] = []  # handed to a scaler since the last backward pass
        self._is_inside = False  # a backward pass; a nested one is part of it
        self._is_on = True
        self._has_seed: bool | None = None  # None: no seed was set so far
        self._first_state = torch.get_rng_state()
        self.is_seeded: bool | None = None  # whether a seed was set before anything random; None: no loss yet

    def install(self) -> None:
        """Before anything else that replaces `backward`, and removed after it."""
        self._replace(torch.autograd, "backward", self._noting_losses)
        for scaler in scalers():
            self._replace(scaler, "scale", self._noting_scaled)
        for module in (torch, torch.random):
            self._replace(module, "manual_seed", self._noting_seed)
        after_import(_COMPILER, _leave_uncompiled)

    def remove(self) -> None:
        self.stop()
        super().remove()

    def stop(self) -> None:
        """No loss that follows is kept."""
        self._is_on = False
        self._scaled.clear()

    def _give_up(self) -> None:
        self.stop()
        self._kept.clear()

    def by_step(self, step_of: Callable[[tuple[int, ...]], int], steps: int) -> StepLosses:
        """The losses by step, the window's first one being 0; `step_of` tells the step from a position."""
        kept, self._kept = self._kept, []
        values = _values_of([loss for _, loss in kept])
        return losses_by_step([step_of(position) for position, _ in kept], values, steps)

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, around(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _noting_losses(self, original: Callable[..., None]) -> Callable[..., None]:
        guard = self._guard

        def backward(*args: Any, **kwargs: Any) -> None:
            if self._is_inside or not self._is_on:
                original(*args, **kwargs)
                return
            try:  # enters no function of another file: the compiler would look at it
                self._keep(args[0] if args else kwargs.get("tensors"))
            except Exception:
                with guard:
                    raise
            self._is_inside = True
            try:
                original(*args, **kwargs)
            finally:
                self._is_inside = False

        return backward

    def _noting_scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_on:
                with self._guard:
                    self._scaled[:] = _scalars(outputs)
            return original(scaler, outputs, *args, **kwargs)

        return scale

    def _noting_seed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def manual_seed(*args: Any, **kwargs: Any) -> Any:
            with self._guard:
                if self._has_seed is None:
                    self._has_seed = not self._has_drawn()
            return original(*args, **kwargs)

        return manual_seed

    def _has_drawn(self) -> bool:
        """Whether random numbers were drawn before, as for a model that is made before the seed is set."""
        on_gpu = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        drawn = any(generator.get_offset() > 0 for generator in on_gpu)
        return drawn or not torch.equal(torch.get_rng_state(), self._first_state)

    def _keep(self, tensors: Any) -> None:
        if self.is_seeded is None:
            self.is_seeded = bool(self._has_seed)
        losses = self._scaled or _scalars(tensors)
        if len(self._kept) < _MOST:
            position = self._position()
            self._kept += [(position, self._own(loss)) for loss in losses]
        self._scaled.clear()

    def _own(self, loss: Tensor) -> Tensor:
        """A view of something large would keep all of it."""
        return loss.clone() if self._copies or loss.untyped_storage().nbytes() > _MOST_BYTES else loss


def _leave_uncompiled() -> None:
    """Where a compiled function calls `backward`, the compiler would compile ours anew in every step."""
    with contextlib.suppress(Exception):
        importlib.import_module(f"{_COMPILER}.trace_rules").add(__name__)


def losses_by_step(steps_of_values: Sequence[int], values: Sequence[float], steps: int) -> StepLosses:
    """The mean loss of each step: over micro-batches of accumulation, or over the parts of a GAN.

    All launches of a script are averaged alike: equal training has equal means. From the first step
    whose loss is not finite on, nothing is kept.
    """
    by_step: dict[int, list[float]] = {}
    for step, value in zip(steps_of_values, values, strict=True):
        by_step.setdefault(step, []).append(value)
    means = {step: math.fsum(values) / len(values) for step, values in sorted(by_step.items())}
    bad = [step for step, mean in means.items() if step < steps and not math.isfinite(mean)]
    end = min(bad, default=steps)
    return StepLosses(
        warmup=[mean for step, mean in means.items() if step < min(0, end)],
        window=[mean for step, mean in means.items() if 0 <= step < end],
        first_bad=None if not bad else 1 + end - min(means),
    )


def _scalars(tensors: Any) -> list[Tensor]:
    """The losses among what is differentiated; gradients of other outputs have no loss."""
    if isinstance(tensors, Tensor):
        return [tensors.detach()] if tensors.numel() == 1 else []
    if isinstance(tensors, list | tuple):
        return [loss for part in tensors for loss in _scalars(part)]
    return []


def _values_of(losses: Sequence[Tensor]) -> list[float]:
    """Read in one copy, unless some are elsewhere than others."""
    if not losses:
        return []
    flat = [loss.reshape(()) for loss in losses]
    if len({(loss.device, loss.dtype) for loss in flat}) > 1:
        flat = [loss.float().cpu() for loss in flat]
    values: list[float] = torch.stack(flat).float().tolist()
    return values
