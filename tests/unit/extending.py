"""Adds a folder of modules to a package of scalescope for the length of a test."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from scalescope.catalog import cards
from scalescope.cli import options

_CACHED = (cards.names, cards.card, cards.all_settings, options._defaults_by_card)


@contextlib.contextmanager
def extended(package_name: str, folder: Path, **sources: str) -> Iterator[None]:
    """`sources` are new modules of the package, written to `folder`; afterwards they are gone again."""
    package = importlib.import_module(package_name)
    folder.mkdir()
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    _forget()
    package.__path__.append(str(folder))
    try:
        yield
    finally:
        package.__path__.remove(str(folder))
        for name in sources:
            module = sys.modules.get(f"{package_name}.{name}")
            if module is not None and Path(str(module.__file__)).parent == folder:
                del sys.modules[f"{package_name}.{name}"]
                delattr(package, name)
        _forget()


def _forget() -> None:
    importlib.invalidate_caches()
    for function in _CACHED:
        function.cache_clear()
