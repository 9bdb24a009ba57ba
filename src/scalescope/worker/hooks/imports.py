"""Acts when a module has been imported: torch can only be changed once it is complete."""

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
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


@contextlib.contextmanager
def apart_from_script() -> Iterator[None]:
    """Import ours as if the folders of a script were not searched first, and leave its imports to the script.

    A `statistics.py` beside a script is what the script imports by that name, and not what we import.
    """
    path, known = [*sys.path], {*sys.modules}
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    of_script = path[: path.index(library)] if library in path else []
    sys.path[:] = [*path[len(of_script) :], *of_script]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in {*sys.modules} - known:
            if "." not in name and _is_found(name, of_script):
                _forget(name)


def _forget(package: str) -> None:
    """Let the next import load a module anew, with what is inside it; who has it already keeps it."""
    for name in [*sys.modules]:
        if name == package or name.startswith(f"{package}."):
            del sys.modules[name]


def _is_found(name: str, folders: Sequence[str]) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec is not None and spec.origin is not None  # a mere folder is not a module


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
