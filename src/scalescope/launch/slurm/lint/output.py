"""Output to a folder that does not exist: SLURM creates none, and the job ends before its script begins."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, line_of
from scalescope.launch.slurm.lint.script import commands, expanded, unquoted


def missing_folder(job: LintedJob) -> Iterator[Mistake]:
    said = set()
    for option in ("output", "error"):
        folder = job.options.get(option, "").rpartition("/")[0]
        if not folder or "%" in folder or folder in said or not _is_missing(folder, job):
            continue
        said.add(folder)
        yield Mistake(
            line_of(option, job),
            f"--{option}: there is no folder {folder}, so the job fails at once and without output",
            _fix(folder, job),
        )


def _is_missing(folder: str, job: LintedJob) -> bool:
    """In every folder that the job may start in.

    An absolute path whose parent is missing too may be on another machine.
    """
    path = Path(folder)
    if path.is_absolute():
        return _is_folder(path) is False and _is_folder(path.parent) is True
    starts = [start / job.options.get("chdir", "") for start in job.folders]
    return bool(starts) and all(_is_folder(start) and _is_folder(start / path) is False for start in starts)


def _is_folder(path: Path) -> bool | None:
    """None where that cannot be seen."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None


def _fix(folder: str, job: LintedJob) -> str:
    if folder.startswith(("~", "$")):
        return "write the path out: sbatch expands neither ~ nor variables in #SBATCH lines"
    made = _made_at(folder, job)
    too_late = f" (the one in line {made} comes too late: SLURM opens the file first)" if made else ""
    return f"mkdir -p {folder} before sbatch{too_late}"


def _made_at(folder: str, job: LintedJob) -> int | None:
    """The line of the script that makes the folder."""
    wanted = os.path.normpath(folder)
    for line in job.script.lines:
        for command in commands(line.text):
            made = [os.path.normpath(unquoted(expanded(word, job.variables))) for word in command.words]
            if "mkdir" in made and any(path == wanted or path.startswith(wanted + "/") for path in made):
                return line.number_at(command.offset)
    return None
