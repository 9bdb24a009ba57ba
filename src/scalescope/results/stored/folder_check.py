"""Whether a run folder may be written to: nothing that we write there may be a link or a device."""

import os
import stat
from pathlib import Path

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
