"""What a script does beside its steps: evaluations, checkpoints, logging and trackers, each with its step."""

import concurrent.futures
import functools
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch import nn

from scalescope import clocks
from scalescope.results.result import CHECKPOINT, EVALUATION, LOGGING
from scalescope.worker.hooks.hook_guard import HookGuard, Hooks
from scalescope.worker.hooks.imports import after_import

# ---- Trackers and hubs of a script while it is measured: nothing is sent, and calls are counted


_FUNCTIONS = {
    "wandb": ("log", "save", "log_artifact"),
    "mlflow": ("log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts"),
}
_HUB = "huggingface_hub.hf_api"
_UPLOADS = ("create_commit", "upload_file", "upload_folder", "upload_large_folder")


class Trackers(Hooks):
    """Replaces functions that send something by ones that count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def install(self) -> None:
        for name, functions in _FUNCTIONS.items():
            after_import(name, lambda name=name, functions=functions: self._replace_in(name, functions))  # type: ignore[misc]
        after_import(_HUB, self._keep_from_hub)

    def _replace_in(self, module_name: str, functions: tuple[str, ...]) -> None:
        module = sys.modules.get(module_name) or importlib.import_module(module_name)
        for function in functions:
            self._replace(module, function, f"{module_name}.{function}", lambda *args, **kwargs: None)

    def _keep_from_hub(self) -> None:
        """Uploads end well, and nothing leaves this machine."""
        api = sys.modules[_HUB].HfApi
        for function in _UPLOADS:
            self._replace(api, function, f"HfApi.{function}", _uploaded)
        self._replace(api, "create_repo", "HfApi.create_repo", _repository)

    def _replace(self, owner: Any, name: str, shown: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[shown] += 1
            return instead(*args, **kwargs)

        setattr(owner, name, counted)
        self._undo.append(lambda: setattr(owner, name, original))


def _uploaded(*args: Any, run_as_future: bool = False, **kwargs: Any) -> Any:
    if not run_as_future:
        return None
    done: concurrent.futures.Future[None] = concurrent.futures.Future()
    done.set_result(None)
    return done


def _repository(api: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(repo_id=repo_id, url=repo_id, endpoint=None)


# ---- What a script does beside its steps: evaluations, checkpoints and logging, each noted with its step


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
        self._is_inside = False  # a call; nested calls are part of it
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
