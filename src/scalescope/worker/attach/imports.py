"""Acts when a module has been imported: torch can only be changed once it is complete."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Watch:
    """A finder that leaves finding to the others and adds an action after loading."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.actions:
            return None
        actions = self.actions.pop(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None
            if finder is not self and find is not None:
                spec = find(name, path, target)
            if spec is not None:
                _act_after_loading(spec, actions)
                return spec
        return None


_WATCH = _Watch()


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` as soon as that module has been loaded; at once if it has been already."""
    if name in sys.modules:
        action()
        return
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
    _WATCH.actions.setdefault(name, []).append(action)


def forget_imports() -> None:
    """Stop watching."""
    _WATCH.actions.clear()
    if _WATCH in sys.meta_path:
        sys.meta_path.remove(_WATCH)


def _act_after_loading(spec: importlib.machinery.ModuleSpec, actions: list[Callable[[], None]]) -> None:
    loader = spec.loader
    execute = getattr(loader, "exec_module", None)
    if loader is None or execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        for action in actions:
            action()

    loader.exec_module = exec_module  # type: ignore[method-assign]
