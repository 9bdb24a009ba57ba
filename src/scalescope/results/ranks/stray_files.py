"""Half-written files: what `write_atomically` leaves behind when its process is killed."""

import contextlib
import re
import stat
from collections.abc import Collection
from pathlib import Path

# As tempfile names them: a dot, the name that the file would have got, and eight random characters.
_STRAY = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}")
_UNLOCKED = ("report.html", "report.json")  # `scalescope report` may write them now


def remove_stray_files(run_folder: Path, written: Collection[str]) -> None:
    """Remove half-written files of ranks and of those that are `written` by whoever holds the run folder.

    Call it only while the folder is held: no one else writes such files then.
    """
    for path, name in _hidden_files(run_folder):
        if name in written and name not in _UNLOCKED:
            _remove(path)
    if not (run_folder / "ranks").is_symlink():
        for path, name in _hidden_files(run_folder / "ranks"):
            if name.endswith(".json"):
                _remove(path)


def _hidden_files(folder: Path) -> list[tuple[Path, str]]:
    """Files that may be half-written, with the names they would have got."""
    with contextlib.suppress(OSError):
        matches = [(path, _STRAY.fullmatch(path.name)) for path in folder.iterdir()]
        return [(path, match["name"]) for path, match in matches if match is not None]
    return []


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
