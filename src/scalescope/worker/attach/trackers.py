"""Trackers and hubs of a script while it is measured: nothing is sent, and calls are counted."""

import concurrent.futures
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from scalescope.worker.attach.hook_guard import Hooks
from scalescope.worker.attach.imports import after_import

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
