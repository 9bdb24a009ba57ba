"""What a script does beside its steps: evaluations, checkpoints and logging, each noted with its step.

Only functions that a script calls now and then are replaced, so a step without such a call costs nothing.
"""

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from scalescope import clocks
from scalescope.results.result import CHECKPOINT, EVALUATION, LOGGING
from scalescope.worker.attach.hook_guard import HookGuard, Hooks
from scalescope.worker.attach.imports import after_import

_MOST_NOTES = 2000
_CALLS = {
    "torch": (CHECKPOINT, ("save",)),
    "torch.distributed.checkpoint": (CHECKPOINT, ("save", "async_save")),
    "safetensors.torch": (CHECKPOINT, ("save_file",)),
    "wandb": (LOGGING, ("log",)),
    "mlflow": (LOGGING, ("log_metric", "log_metrics")),
}

Row = dict[str, float | int | str | None]


class ScriptEvents(Hooks):
    """Notes events from `begin` on."""

    def __init__(self, guard: HookGuard) -> None:
        super().__init__()
        self._guard = guard
        self._step: Callable[[], int] | None = None  # that is under way, from 0; None before the window
        self._models: frozenset[int] = frozenset()
        self._is_inside = False  # a call; what it calls by itself is a part of it
        self._times_s: dict[tuple[int, str], float | None] = {}

    def install(self) -> None:
        for module, (kind, functions) in _CALLS.items():
            after_import(module, functools.partial(self._time_calls, module, kind, functions))
        original = nn.Module.eval

        def evaluated(module: Any) -> Any:
            returned = original(module)
            if id(module) in self._models:
                with self._guard:
                    self._note(EVALUATION, None)
            return returned

        setattr(nn.Module, "eval", evaluated)  # noqa: B010
        self._undo.append(lambda: setattr(nn.Module, "eval", original))

    def begin(self, step: Callable[[], int], models: Sequence[nn.Module]) -> None:
        """The window begins. Only models that are trained evaluate: a frozen part of one may be told to in
        every step."""
        self._models = frozenset(id(layer) for model in models for layer in _with_wrapped(model))
        self._step = step

    def rows(self, steps: int) -> list[Row]:
        """What was noted in the steps of the window."""
        return [
            {"step": step, "kind": kind, "time_s": time_s}
            for (step, kind), time_s in self._times_s.items()
            if step < steps
        ]

    def _time_calls(self, module_name: str, kind: str, functions: tuple[str, ...]) -> None:
        module = sys.modules.get(module_name) or importlib.import_module(module_name)
        for name in functions:
            if hasattr(module, name):
                self._time_call(module, name, kind)

    def _time_call(self, module: Any, name: str, kind: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            # A thread that saves in the background keeps no step waiting.
            in_background = threading.current_thread() is not threading.main_thread()
            if self._step is None or self._is_inside or in_background:
                return original(*args, **kwargs)
            self._is_inside = True
            began = clocks.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False
                with self._guard:
                    self._note(kind, clocks.perf_counter() - began)

        setattr(module, name, timed)
        self._undo.append(lambda: setattr(module, name, original))

    def _note(self, kind: str, time_s: float | None) -> None:
        if self._step is None or len(self._times_s) >= _MOST_NOTES:
            return
        key = self._step(), kind
        known_s = self._times_s.get(key)
        self._times_s[key] = time_s if known_s is None or time_s is None else known_s + time_s


def _with_wrapped(model: nn.Module) -> list[nn.Module]:
    """A model and what it wraps, by DDP or compilation: a script may evaluate any of them."""
    found = [model]
    for name in ("_orig_mod", "module") * 2:
        wrapped = getattr(found[-1], name, None)
        if isinstance(wrapped, nn.Module):
            found.append(wrapped)
    return found
