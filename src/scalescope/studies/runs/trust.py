"""Whether what a run folder stores may be run again: only where nobody else could have written it."""

import os
import stat
from pathlib import Path

from scalescope.errors import BadInput
from scalescope.results.run_folder import EXPERIMENT, JOB_RECORD, JOB_REQUEST, RUN, TRIALS

# What commands, workload files and environment variables of further launches are read from.
_SOURCES = ("", "slurm", EXPERIMENT, RUN, TRIALS, JOB_REQUEST, JOB_RECORD)
_ROOT = 0


def refuse_untrusted(path: Path, *, trusted: bool) -> None:
    """Refuse to run what a folder stores where others may have written it, unless the user trusts it.

    A request names commands, Python files and variables such as LD_PRELOAD: running it is running code.
    """
    if trusted:
        return
    folder = path.resolve()
    for name in _SOURCES:
        writer = _other_writer(folder / name)
        if writer is not None:
            raise BadInput(
                f"{folder / name} {writer}, and its commands would be run as yours: look at what it stores, "
                "then add --trust"
            )


def _other_writer(path: Path) -> str | None:
    """Who else may have written a file; None where only we, or the administrator, could."""
    try:
        facts = path.lstat()
    except OSError:  # it is not there, so nothing is read from it
        return None
    if stat.S_ISLNK(facts.st_mode):
        return "is a link"
    if facts.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to user {facts.st_uid}"
    if facts.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    return None
