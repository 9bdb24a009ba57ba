"""Writing that survives a crash: whole files by rename, lines by one appending write."""

import json
import os
import secrets
from pathlib import Path
from typing import Any, NoReturn

from scalescope.errors import StorageError
from scalescope.results.printable import encodable
from scalescope.results.stored.files import open_regular


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: a reader, or a crash, sees the old or the new content.

    A link of that name is replaced too: nothing is written to where it leads.
    """
    encoded = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        # Not mkstemp: its file would need a mode of its own, and the user's umask decides here.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(encoded)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: could not be written: {error.strerror}") from None


class ResultLines:
    """The lines that a run appends to one file.

    The file stays open: what was written is not lost when somebody removes or replaces it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def append(self, record: dict[str, Any]) -> None:
        """Append one JSON line by a single write and wait until it is on the disk."""
        line = to_line(record)
        try:
            if self._descriptor is None:
                self._descriptor = open_regular(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            append_bytes(self._descriptor, line.encode())
        except OSError as error:
            raise StorageError(f"{self._path}: could not be written: {error.strerror}") from None
        self.check()

    def check(self) -> None:
        """StorageError where the file is not the one that was written to; what it held is written anew."""
        if self._descriptor is None:
            return
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            self._write_back(self._path, "was removed")
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read: {error.strerror}") from None
        else:
            held = os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
                self._write_back(self._path.with_suffix(".kept.jsonl"), "was replaced by another file")

    def _write_back(self, path: Path, what: str) -> NoReturn:
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        content = os.pread(self._descriptor, size, 0)
        self.close()
        write_atomically(path, content)
        raise StorageError(f"{self._path} {what} while the run measured; its results are kept in {path}")

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def append_bytes(descriptor: int, line: bytes) -> None:
    """Append to an open file by a single write, on a line of its own, and wait until it is on the disk."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        # A killed writer left half a line: close it, or it would swallow this one.
        line = b"\n" + line
    written = os.write(descriptor, line)
    if written < len(line):
        # A full disk takes part of a line: remove that part to keep old lines whole.
        os.ftruncate(descriptor, end)
        raise OSError(28, "No space left on device")
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_line(record: Any) -> str:
    """The record as one line of JSON, with its end."""
    return _json(record, separators=(",", ":")) + "\n"


def to_text(record: Any) -> str:
    """Readable JSON: indented, stable, without NaN."""
    return _json(record, indent=1) + "\n"


def _json(record: Any, **style: Any) -> str:
    """JSON that strict readers accept: a lone surrogate in a message would make a whole line unreadable."""
    text = json.dumps(record, allow_nan=False, **style)
    may_hold_surrogates = "\\ud" in text  # as half of a pair, or lone
    return json.dumps(encodable(record), allow_nan=False, **style) if may_hold_surrogates else text
