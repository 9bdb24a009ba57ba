"""Adds folders of modules to packages of scalescope for the length of a test."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scalescope.catalog import cards
from scalescope.cli import options

_CACHED = (cards.names, cards.card, cards.all_settings, options._defaults_by_card)
_VERBS = "scalescope.cli.verbs"  # their flags are made of the cards when they are imported


@contextlib.contextmanager
def extended(package_name: str, folder: Path, **sources: str) -> Iterator[None]:
    """`sources` are new modules of the package, written to `folder`; afterwards they are gone again."""
    folder.mkdir()
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    with extended_by({package_name: folder}):
        yield


@contextlib.contextmanager
def extended_by(folders: Mapping[str, Path]) -> Iterator[None]:
    """The modules in each folder belong to the package of that name; afterwards they are gone again."""
    _forget()
    for package_name, folder in folders.items():
        importlib.import_module(package_name).__path__.append(str(folder))
    try:
        yield
    finally:
        for package_name, folder in folders.items():
            importlib.import_module(package_name).__path__.remove(str(folder))
            _forget_modules(package_name, folder)
        _forget()


def _forget_modules(package_name: str, folder: Path | None = None) -> None:
    """Import the modules of a package anew next time: those of a folder, or all."""
    package = importlib.import_module(package_name)
    for name, module in list(sys.modules.items()):
        parent, _, stem = name.rpartition(".")
        if parent == package_name and folder in (None, Path(str(module.__file__)).parent):
            del sys.modules[name]
            delattr(package, stem)


def _forget() -> None:
    importlib.invalidate_caches()
    for function in _CACHED:
        function.cache_clear()
    _forget_modules(_VERBS)
