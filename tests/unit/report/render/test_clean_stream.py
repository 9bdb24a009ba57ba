"""Streams that clean what passes, and that survive the end of their reader."""

import errno
import io
from typing import TextIO, cast

import pytest

from scalescope.report.render.clean_stream import CleanStream
from scalescope.report.render.terminal import console


class Broken(io.StringIO):
    """A stream that takes so many writes and then no more."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._left = writes

    def write(self, text: str) -> int:
        if not self._left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= 1
        return super().write(text)


def test_control_characters_are_spelled_out_and_lines_kept() -> None:
    target = io.StringIO()
    stream = CleanStream(target)
    text = "a\x1b[31m\tb\n\x9b\u202e\u2066\udcff\x7f\r\n"
    assert stream.write(text) == len(text)
    assert target.getvalue() == "a\\x1b[31m\tb\n\\x9b\\u202e\\u2066\\udcff\\x7f\\r\n"


def test_bytes_are_cleaned_too() -> None:
    target = io.StringIO()
    CleanStream(target).buffer.write(b"caf\xe9 \x1b[2J")
    assert target.getvalue() == "caf\\xe9 \\x1b[2J"


def test_only_a_console_adds_escape_sequences() -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    target = Terminal()
    page = console(cast(TextIO, CleanStream(target)))
    page._force_terminal = True
    page._color_system = None
    page.print("[bold]a\x1b[31mb[/bold]")
    assert "\x1b[31m" not in target.getvalue()
    assert "a\\x1b[31mb" in target.getvalue()


def test_an_output_that_breaks_is_remembered_and_left_alone() -> None:
    target = Broken(writes=1)
    stream = CleanStream(target)
    for text in ("kept\n", "lost\n", "lost too\n"):
        stream.write(text)
    stream.flush()
    assert target.getvalue() == "kept\n"
    assert stream.error is not None
    assert stream.error.errno == errno.ENOSPC


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError):
        CleanStream(io.StringIO()).write(b"")  # type: ignore[arg-type]
