"""Writing that survives a crash: whole files by rename, lines by one appending write."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from scalescope.errors import StorageError
from scalescope.results.printable import encodable


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new text and nothing between."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(stream.fileno(), 0o644)
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: could not be written: {error.strerror}") from None


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one JSON line by a single write and wait until it is on the disk."""
    line = _json(record, separators=(",", ":")) + "\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            _append(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{path}: could not be written: {error.strerror}") from None


def _append(descriptor: int, line: bytes) -> None:
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        # A killed writer left half a line: close it, or it would swallow this one.
        line = b"\n" + line
    written = os.write(descriptor, line)
    if written < len(line):
        # A full disk takes part of a line: take it back, so that old lines stay whole.
        os.ftruncate(descriptor, end)
        raise OSError(28, "No space left on device")
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_text(record: Any) -> str:
    """Readable JSON: indented, stable, without NaN."""
    return _json(record, indent=1) + "\n"


def _json(record: Any, **style: Any) -> str:
    """JSON that strict readers accept: a lone surrogate in a message would make a whole line unreadable."""
    text = json.dumps(record, allow_nan=False, **style)
    may_hold_surrogates = "\\ud" in text  # as half of a pair, or lone
    return json.dumps(encodable(record), allow_nan=False, **style) if may_hold_surrogates else text
