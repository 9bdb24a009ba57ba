"""One bad input as data: files to write, the command line, and what must be said of it."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.errors import ExitCode

STORED_RUNS = Path(__file__).parents[1] / "stored_runs"
FILE = "e.yaml"  # the experiment file of most cases


class Fifo:
    """A named pipe, which nobody writes to."""


class Unreadable:
    """A file that its owner may not read; root may."""


class Folder:
    """An empty folder."""


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A copy of a stored run in which some files are replaced; None removes one."""

    verb: str
    replaced: Mapping[str, str | bytes | None] = field(default_factory=dict)


Content = str | bytes | Fifo | Unreadable | Folder | Link | StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command that must be refused; `says` are words of the only line that it prints."""

    name: str
    command: tuple[str, ...]
    says: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    code: ExitCode = ExitCode.BAD_INPUT
    gpus: int = 0
    shows: bool = False  # whether something is printed before the refusal
    leaves: bool = False  # whether something is kept on purpose


def of_file(name: str, content: Content, *says: str, verb: str = "train", code: int = 2) -> Case:
    """An experiment file that must be refused."""
    return Case(
        name=f"file: {name}", command=(verb, FILE), says=says, files={FILE: content}, code=ExitCode(code)
    )


def of_command(name: str, command: str, *says: str, **more: Any) -> Case:
    """Words of a command line, separated by blanks, that must be refused."""
    return Case(name=name, command=tuple(command.split()), says=says, **more)


def of_flags(name: str, command: str, *says: str) -> Case:
    """The same where nothing but the command line matters."""
    return of_command(f"flags: {name}", command, *says)


def write(folder: Path, files: Mapping[str, Content]) -> None:
    """Make the files of a case."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case Fifo():
                os.mkfifo(path)
            case Unreadable():
                path.touch(mode=0)
            case Folder():
                path.mkdir()
            case Link(target):
                path.symlink_to(target)
            case StoredRun(verb, replaced):
                shutil.copytree(STORED_RUNS / verb, path)
                for part, new in replaced.items():
                    (path / part).unlink()
                    if new is not None:
                        write(path, {part: new})
            case str():
                path.write_text(content, encoding="utf-8", newline="")
            case bytes():
                path.write_bytes(content)
