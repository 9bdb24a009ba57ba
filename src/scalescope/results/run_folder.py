"""The run folder: who may write to it, where its files lie, and how it is found again."""

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from scalescope.errors import BadInput, CannotRun, StorageError
from scalescope.results.files import ResultLines, write_atomically
from scalescope.results.ranks import remove_stray_files
from scalescope.results.result import Result, to_json
from scalescope.results.stored import ENVIRONMENT as ENVIRONMENT
from scalescope.results.stored.files import open_regular, refused_entry
from scalescope.results.stored.files import read_json as read_json

DEFAULT_ROOT = Path("runs")
TRIALS = "trials.jsonl"
RESULTS = "results.json"
RUN = "run.json"
TUNING = "tuning.json"
TUNED = "tuned.yaml"
PERFORMANCE = "performance_report.txt"
EXPERIMENT = "experiment.yaml"
JOB_REQUEST = "slurm/request.yaml"  # of a run that was submitted as a job
JOB_RECORD = "slurm/job.json"
LOCK = ".lock"
_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
# Everything that scalescope writes directly into a run folder: what else lies there is somebody's.
WRITTEN = frozenset(
    (
        *(TRIALS, RESULTS, RUN, TUNING, TUNED, PERFORMANCE, EXPERIMENT, ENVIRONMENT, LOCK),
        *("curve.json", "report.html", "report.json"),
        *("ranks", "logs", "slurm", "traces", "figures", "tables"),
    )
)


class RunFolder:
    """One run's folder, held for writing by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._lines = ResultLines(path / TRIALS)

    @classmethod
    def open(cls, path: Path, *, resume: bool) -> "RunFolder":
        """Create the folder, or with `resume` take up the one that is there."""
        folder = cls(path)
        refused = refused_entry(path, WRITTEN)
        if refused is not None:
            raise StorageError(f"{refused}; nothing is written to this run folder")
        try:
            for part in ("", "ranks", "logs"):
                (path / part).mkdir(parents=True, exist_ok=True)
            folder._acquire()
        except OSError as error:
            # A full or broken disk is one thing; a place where nobody may write was never going to work.
            refusal = CannotRun if error.errno in _NOT_ALLOWED else StorageError
            raise refusal(f"{path}: cannot be written: {error.strerror}") from None
        if not resume and (path / TRIALS).exists():
            folder.close()
            raise BadInput(
                f"{path} already contains a run; use --resume to continue it, or give another folder"
            )
        remove_stray_files(path, WRITTEN)
        return folder

    @classmethod
    def hold(cls, path: Path) -> "RunFolder":
        """Keep others from writing to a folder, without writing to it; links in it do not matter."""
        folder = cls(path)
        try:
            folder._acquire()
        except OSError as error:
            if not (path / LOCK).is_symlink():
                raise StorageError(f"{path}: cannot be locked: {error.strerror}") from None
        return folder

    def _acquire(self) -> None:
        # The lock belongs to the open file, so it is gone with its holder: a stale one cannot exist.
        self._lock = open_regular(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 200, 0).decode(errors="replace").strip()
            os.close(self._lock)
            self._lock = None
            raise CannotRun(f"{self.path} is in use by {holder or 'another run'}") from None
        os.ftruncate(self._lock, 0)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        os.pwrite(self._lock, holder.encode(errors="backslashreplace"), 0)

    def close(self) -> None:
        """Let others write."""
        self._lines.close()
        if self._lock is not None:
            remove_stray_files(self.path, WRITTEN)
            os.close(self._lock)
            self._lock = None

    def rank_file(self, trial_id: str, launch: int, rank: int) -> Path:
        return self.path / "ranks" / f"{trial_id}-{launch}-{rank}.json"

    def log_file(self, trial_id: str, launch: int, rank: int) -> Path:
        return self.path / "logs" / f"{trial_id}-{launch}-{rank}.log"

    def append(self, result: Result) -> None:
        """Store a result; StorageError where it cannot be, or where somebody removed the others."""
        self._lines.append(to_json(result))

    def check(self) -> None:
        """StorageError where somebody removed or replaced the results that this run has stored."""
        self._lines.check()

    def write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text)


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, or one that is submitted as a job."""
    return any((path / name).is_file() for name in (TRIALS, EXPERIMENT, JOB_REQUEST))


def writer_of(path: Path) -> str | None:
    """The process that holds a run folder for writing; None where nobody does."""
    try:
        lock = open_regular(path / LOCK)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 200, 0).decode(errors="replace").strip() or "another run"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(lock)
    return None


def refuse_in_use(path: Path) -> None:
    """Refuse to touch a run that is being written."""
    writer = writer_of(path)
    if writer is not None:
        raise CannotRun(f"{path} is in use by {writer}")


def new_run_path(verb: str, root: Path = DEFAULT_ROOT, *, makes: bool = True) -> Path:
    """A folder that nobody uses yet: the time, then the verb.

    It is created at once: no other run that begins now gets the same; where it cannot be made, whoever opens
    it says why. Without `makes` it is only named.
    """
    stem = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{verb}"
    paths = itertools.chain(
        (stem,), (stem.with_name(f"{stem.name}-{number}") for number in itertools.count(2))
    )
    if not makes:
        return next(path for path in paths if not os.path.lexists(path))
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
    return next(path for path in paths if _is_free(path))


def _is_free(path: Path) -> bool:
    """Whether nobody has made a folder; it is made now, if it can be."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def point_latest_at(path: Path) -> None:
    """Let `latest` beside the run folder point at it; a place without symlinks goes without."""
    link = path.parent / "latest"
    temporary = path.parent / f".latest-{os.getpid()}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)


def find_runs(root: Path, *, jobs: bool = False, deepest: int = 32) -> Iterator[Path]:
    """All run folders at or below `root`, oldest name first; links are not followed.

    With `jobs`, also those of jobs that have not begun to measure. Folders further down than `deepest`, and
    those that may not be read, are left out.
    """
    if is_run_folder(root) and (jobs or (root / TRIALS).is_file() or (root / EXPERIMENT).is_file()):
        yield root
        return
    if not root.is_dir() or deepest == 0:
        return
    try:
        children = sorted(root.iterdir())
    except OSError:
        return
    for child in children:
        if not child.is_symlink() and child.is_dir():
            yield from find_runs(child, jobs=jobs, deepest=deepest - 1)
