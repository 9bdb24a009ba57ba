"""The only way in for files of a run folder: regular files inside it, bounded."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from scalescope.results.printable import encodable

# ---- Whether a run folder may be written to: nothing that we write there may be a link or a device


_SUBFOLDERS = frozenset(("ranks", "logs", "slurm", "traces", "figures", "tables"))


def refused_entry(folder: Path, names: frozenset[str]) -> str | None:
    """The first of our files that is a link or not a regular file, in words; None where all are.

    `names` are those that we write directly into the folder; what else lies there is somebody's.
    """
    for name in sorted(names):
        path = folder / name
        problem = _problem(path, is_folder=name in _SUBFOLDERS)
        if problem is not None:
            return f"{path} {problem}"
        if name in _SUBFOLDERS and path.is_dir():
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                        return f"{entry.path} is a link or a device"
    return None


def refused_folder(path: Path) -> str | None:
    """Why nothing is written into a folder below a run; None where it may, or does not exist."""
    problem = _problem(path, is_folder=True)
    return None if problem is None else f"{path} {problem}"


def _problem(path: Path, *, is_folder: bool) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(mode):
        return "is a link, which is not followed"
    if is_folder:
        return None if stat.S_ISDIR(mode) else "is not a folder"
    # A folder in place of a file is safe: it cannot be replaced by one.
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"


# ---- Files of a run folder: only regular ones, of bounded size, and nothing that a link leads to


LARGEST_FILE_BYTES = 64 << 20  # of a JSON or text file
LARGEST_TRACE_BYTES = 4 << 30  # unpacked; it is read in a stream
LARGEST_LINE_BYTES = 256 << 20  # of trials.jsonl: a thousand ranks with thousands of steps
LARGEST_LINES_BYTES = 8 << 30  # of the whole file
LARGEST_NUMBER = 1e39  # more than a 32-bit float holds; its powers are still numbers
_DEEPEST = 100  # values inside each other
_LONGEST_NUMBER = 39  # digits
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unreadable(ValueError):
    """A file of a run folder that is not read; the message is half a sentence."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and no link to one; OSError where that is not possible.

    Opening does not wait, as it would for the other end of a FIFO.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link, which is not followed", str(path)) from None
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise OSError(error.errno, "is not a regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def inside(folder: Path, name: str) -> Path:
    """The path of a file that stored data names; Unreadable where the name leads out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
        raise Unreadable("the path leads out of the run folder")
    for depth in range(1, len(parts)):
        if folder.joinpath(*parts[:depth]).is_symlink():
            raise Unreadable(f"its folder {PurePosixPath(*parts[:depth])} is a link")
    return folder.joinpath(*parts)


def read_bytes(path: Path, most: int = LARGEST_FILE_BYTES) -> bytes:
    """The content of a regular file; OSError or Unreadable otherwise."""
    with os.fdopen(open_regular(path), "rb") as stream:
        is_larger = os.fstat(stream.fileno()).st_size > most
        content = b"" if is_larger else stream.read(most + 1)
    if is_larger or len(content) > most:
        raise Unreadable(f"the file has more than {most} bytes")
    return content


def read_text(path: Path) -> str:
    """The same as text; bytes that are not UTF-8 are replaced."""
    return read_bytes(path).decode("utf-8", "replace")


def stored_lines(path: Path, warn: Callable[[str], None]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; what ends the reading is told to `warn`."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        warn(f"{path}: left out: {error.strerror}")
        return
    with os.fdopen(descriptor, "rb") as stream:
        size, number = 0, 0
        while line := stream.readline(LARGEST_LINE_BYTES + 1):
            number += 1
            size += len(line)
            if len(line) > LARGEST_LINE_BYTES:
                warn(f"{path}:{number}: left out with all that follows: the line is too long")
                return
            if size > LARGEST_LINES_BYTES:
                warn(f"{path}:{number}: left out with all that follows: the file is too large")
                return
            if not line.isspace():
                yield number, line


def parse_json(content: bytes | str) -> object:
    """A JSON value without NaN, huge numbers, lone surrogates and deep nesting; Unreadable otherwise."""
    try:
        value = json.loads(
            content, parse_constant=_refuse_constant, parse_float=_number, parse_int=_whole_number
        )
    except RecursionError:
        raise Unreadable("the file is nested too deeply") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"the file is not valid JSON: {str(error)[:100]}") from None
    _check_depth(value)
    holds_surrogates = "\\ud" in content if isinstance(content, str) else b"\\ud" in content
    return encodable(value) if holds_surrogates else value


def read_json(path: Path) -> object:
    """A JSON file, or None where there is none or it cannot be read."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, Unreadable):
        return None


def why_unreadable(path: Path) -> str | None:
    """Why a JSON file that is there cannot be read, as a warning; None where it can."""
    try:
        parse_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path}: left out: {error.strerror}"
    except Unreadable as error:
        return f"{path}: left out: {error}"
    return None


def _refuse_constant(word: str) -> float:
    raise Unreadable(f"the file contains {word}, which is not a number")


def _number(text: str) -> float:
    number = float(text)
    if not abs(number) <= LARGEST_NUMBER:
        raise Unreadable(f"the file contains the number {text[:20]}, which is too large")
    return number


def _whole_number(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise Unreadable(f"the file contains a number of {len(text)} digits")
    return int(text)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = (
            [
                member
                for container in level
                for member in (container.values() if isinstance(container, dict) else container)
                if isinstance(member, dict | list)
            ]
            if level and isinstance(level[0], dict | list)
            else []
        )
        if not level:
            return
    raise Unreadable("the file is nested too deeply")
