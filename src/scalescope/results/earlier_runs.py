"""What earlier runs say of this machine: their launches, read from the newest few run folders."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from scalescope.results.result import Result
from scalescope.results.run_folder import TRIALS
from scalescope.results.schema import parse_result

_MOST_RUNS = 20
_MOST_LAUNCHES = 100  # of each run
_LARGEST_BYTES = 16 << 20  # a file beyond that takes longer to read than it is worth


def earlier_results(root: Path, environment_id: str, *, but: Path | None = None) -> list[Result]:
    """Finished launches of this machine in the newest runs of a folder, without those of the run `but`."""
    results = []
    for path in _newest_trials(root):
        if but is not None and path.parent.resolve() == but.resolve():
            continue
        for result in _first_results(path):
            if result.status == "ok" and result.environment_id == environment_id:
                results.append(result)
    return results


def _newest_trials(root: Path) -> list[Path]:
    """The results of the runs that lie directly in a folder, the newest first."""
    changed: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    trials = Path(entry.path) / TRIALS
                    status = trials.stat()
                    if status.st_size <= _LARGEST_BYTES:
                        changed.append((status.st_mtime, trials))
    return [path for _, path in sorted(changed, reverse=True)[:_MOST_RUNS]]


def _first_results(path: Path) -> Iterator[Result]:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        for _, line in zip(range(_MOST_LAUNCHES), stream, strict=False):
            with contextlib.suppress(ValueError):
                yield parse_result(line)
