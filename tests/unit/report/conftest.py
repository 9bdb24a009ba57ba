"""Shared by the tests of reports: rendered text held against the files in tests/golden."""

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from rich.console import Console

from scalescope.report.render.terminal import console, show
from scalescope.report.section import Section

GOLDEN = Path(__file__).parents[2] / "golden"

Render = Callable[..., str]
Golden = Callable[[str, str], None]


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> Render:
    """Sections as they are printed into a file, or on a page of the given width."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def text_of(sections: Iterable[Section], *, width: int | None = None, verbose: bool = False) -> str:
        stream = io.StringIO()
        target: Console = console(stream)
        if width is not None:
            target.width = width
        show(sections, target, verbose=verbose)
        return stream.getvalue()

    return text_of


@pytest.fixture
def golden() -> Golden:
    """Compare a text with a golden file; UPDATE_GOLDEN=1 writes the file instead, for a look at its diff."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; UPDATE_GOLDEN=1 pytest {__file__} writes it"
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"{path} differs; if that is meant, run again with UPDATE_GOLDEN=1"

    return compare
