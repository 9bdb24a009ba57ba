"""Standard output and error as people get them: no foreign control characters, and no end by a full disk."""

import contextlib
import io
import os
from typing import TYPE_CHECKING, TextIO, cast

from scalescope.results.printable import printable_lines

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class CleanStream(io.TextIOBase):
    """Passes text on with control characters spelled out, whoever wrote it: a verb, click, a traceback.

    A stream that cannot be written any more is remembered in `error` and left alone: a reader that has gone,
    or a full disk, must not cost a measurement. `styled` takes text whose colors are our own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None
        self.styled = cast(TextIO, _StyledStream(self))
        self.buffer = _ByteStream(self)

    def write(self, text: str) -> int:
        self.pass_on(printable_lines(text))
        return len(text)

    def pass_on(self, text: str) -> None:
        """Write text that is clean already."""
        if self.error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._abandon(error)

    def flush(self) -> None:
        if self.error is None and not self._stream.closed:
            try:
                self._stream.flush()
            except OSError as error:
                self._abandon(error)

    def _abandon(self, error: OSError) -> None:
        """Drop what is left; what is buffered goes nowhere, or the interpreter would complain at its end."""
        self.error = error
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


class _StyledStream(io.TextIOBase):
    """The same stream for a console that cleans its text and adds colors."""

    def __init__(self, target: CleanStream) -> None:
        self._target = target

    def write(self, text: str) -> int:
        self._target.pass_on(text)
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding


class _ByteStream(io.RawIOBase):
    """The same stream for whoever writes bytes, as click does to complete a word."""

    def __init__(self, target: CleanStream) -> None:
        self._target = target

    def write(self, content: "ReadableBuffer") -> int:
        raw = bytes(content)
        self._target.write(raw.decode("utf-8", "backslashreplace"))
        return len(raw)

    def flush(self) -> None:
        self._target.flush()

    def writable(self) -> bool:
        return True
