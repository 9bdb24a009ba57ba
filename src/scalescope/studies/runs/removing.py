"""Removing runs: only folders that hold a run and nothing else, never through links, and none in use."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalescope.errors import BadInput, CannotRun, StorageError
from scalescope.launch.slurm import queue as slurm
from scalescope.results.run_folder import (
    JOB_REQUEST,
    RUN,
    TRIALS,
    WRITTEN,
    RunFolder,
    find_runs,
    point_latest_at,
    refuse_in_use,
)
from scalescope.results.run_record import began_at
from scalescope.studies.slurm.slurm_request import job_id_of

_MOST_NAMED = 3
_OF_A_RANK = r"[0-9a-f]{12}-\d+-\d+"  # trial, launch, rank
_NAMES_INSIDE = {
    "ranks": rf"{_OF_A_RANK}\.json",
    "logs": rf"{_OF_A_RANK}\.log",
    "traces": rf"{_OF_A_RANK}(\.pt\.trace)?\.json(\.gz)?|nsys[-.\w]*",
    "slurm": r"request\.yaml|job\.sh|job\.json|slurm-\d+\.out",
    "figures": r".+\.(svg|pdf|png)",
    "tables": r"(comprehensive_summary|summary_table|before_after)\.(csv|tex|md)",
}


def removable(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The folders of runs that may be removed, each once; refuses all of them where one may not be."""
    for path in paths:
        _check(path)
    by_place = {path.resolve(): path for path in paths}
    return tuple(by_place.values())


def _check(path: Path) -> None:
    if path.is_symlink():
        raise BadInput(f"rm: {path} is a link; give the run folder itself")
    if not path.is_dir():
        raise BadInput(f"rm: {path}: no such run folder")
    if not any((path / name).is_file() for name in (TRIALS, RUN, JOB_REQUEST)):
        raise BadInput(f"rm: {path}: contains no run, so it was not removed")
    if Path.cwd().resolve().is_relative_to(path.resolve()):
        raise BadInput(f"rm: {path} is or contains the current folder; change to another folder first")
    _refuse_strangers(path)
    refuse_in_use(path)
    _refuse_queued(path)


def _refuse_strangers(path: Path) -> None:
    """Refuse a folder that also holds files of others, wherever in it."""
    strangers = sorted(_strangers(path))
    if strangers:
        more = " ..." if len(strangers) > _MOST_NAMED else ""
        names = ", ".join(map(repr, strangers[:_MOST_NAMED]))
        raise BadInput(
            f"rm: {path} also contains files not written by scalescope: {names}{more}; move them first"
        )


def _strangers(path: Path) -> Iterator[str]:
    """What is not named as scalescope names files; a crash may leave one of ours half written.

    Links in our subfolders do not count: they are removed, and what they lead to stays.
    """
    ours = "|".join(map(re.escape, WRITTEN))
    for entry in path.iterdir():
        if not re.fullmatch(rf"{ours}|\.({ours})\..+", entry.name):
            yield entry.name
        elif entry.is_dir() and not entry.is_symlink():
            names = _NAMES_INSIDE.get(entry.name, "(?!)")
            for inner in entry.iterdir():
                is_named_so = re.fullmatch(rf"{names}|\.({names})\.[a-z0-9_]{{8}}", inner.name)
                if not inner.is_symlink() and not (is_named_so and inner.is_file()):
                    yield f"{entry.name}/{inner.name}"


def _refuse_queued(path: Path) -> None:
    """Refuse a run whose job SLURM still has: it would measure into a folder that is gone."""
    number = job_id_of(path)
    if number is None:
        return
    with contextlib.suppress(slurm.Unanswered):  # no SLURM here, or none that answers
        if not slurm.state_of(number).is_over:
            raise CannotRun(
                f"rm: {path}: job {number} is still running or queued; cancel it with 'scancel {number}'"
            )


def size_bytes(path: Path) -> int:
    """What the files of a folder take; links count as themselves."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(folder) / name).st_size
    return total


def remove(path: Path) -> None:
    """Remove a run folder; links inside it are removed and not followed."""
    folder = RunFolder.hold(path)  # nobody may begin to write to it now
    try:
        _refuse_strangers(path)  # somebody may have added one since
        shutil.rmtree(path)
    except OSError as error:
        raise StorageError(f"rm: {path}: could not be removed: {error.strerror}") from None
    finally:
        folder.close()
    _renew_latest(path.parent)


def _renew_latest(root: Path) -> None:
    """Let `latest` point at the newest run that is left, where it pointed at one that is gone."""
    link = root / "latest"
    if not link.is_symlink() or link.exists():
        return
    left = [run for run in find_runs(root) if run.parent == root]
    with contextlib.suppress(OSError):
        if left:
            point_latest_at(max(left, key=began_at))
        else:
            link.unlink()
