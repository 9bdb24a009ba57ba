"""Side effects of a script while it is measured: checkpoints and trackers are left out, and counted."""

import importlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from scalescope.worker.attach.imports import after_import

_CHECKPOINTS = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
_TRACKERS = {
    "wandb": ("log", "save", "log_artifact"),
    "mlflow": ("log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts"),
}
_EVENT_FILES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class Writes:
    """Replaces functions that write by ones that count."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        os.environ.setdefault("WANDB_MODE", "disabled")
        self._replace(torch, "save", "torch.save", writes_file=_is_file)
        for name, functions in {**_CHECKPOINTS, **_TRACKERS}.items():
            after_import(name, lambda name=name, functions=functions: self._replace_in(name, functions))  # type: ignore[misc]
        for name in _EVENT_FILES:
            after_import(name, lambda name=name: self._silence_events(name))  # type: ignore[misc]

    def remove(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _replace_in(self, module_name: str, functions: tuple[str, ...]) -> None:
        module = sys.modules.get(module_name) or importlib.import_module(module_name)
        for function in functions:
            if hasattr(module, function):
                self._replace(module, function, f"{module_name}.{function}")

    def _replace(
        self,
        owner: Any,
        name: str,
        shown: str,
        writes_file: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda args, kwargs: True,
    ) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not writes_file(args, kwargs):
                return original(*args, **kwargs)
            self.calls[shown] += 1
            return None

        setattr(owner, name, counted)
        self._undo.append(lambda: setattr(owner, name, original))

    def _silence_events(self, module_name: str) -> None:
        """A writer of TensorBoard keeps working, on a file that is not there."""
        kind = getattr(sys.modules[module_name], "FileWriter", None)
        if kind is None:
            return
        writes, original = self, kind.__init__

        def init(self: Any, logdir: Any = None, *args: Any, **kwargs: Any) -> None:
            self._logdir = str(logdir)
            self.event_writer = _NoEvents(writes.calls, f"{module_name}.FileWriter")

        kind.__init__ = init
        self._undo.append(lambda: setattr(kind, "__init__", original))


class _NoEvents:
    """Takes events and forgets them."""

    def __init__(self, calls: Counter[str], name: str) -> None:
        self._calls, self._name = calls, name

    def add_event(self, *args: Any, **kwargs: Any) -> None:
        self._calls[self._name] += 1

    def get_logdir(self) -> str:
        return ""

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def reopen(self) -> None: ...


def _is_file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch.save writes to a file; some libraries save into memory, to send objects."""
    target = args[1] if len(args) > 1 else kwargs.get("f")
    return not isinstance(target, io.BytesIO)
