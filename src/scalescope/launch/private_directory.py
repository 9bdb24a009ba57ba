"""A directory that only we can read, for what the ranks of one launch share; removed with its owner."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scalescope.errors import CannotRun

_PREFIX = "scalescope-launch-"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a directory there that only we can read
_ROOM_BYTES = 1 << 18  # for the heartbeats, the store and the jobs of one launch
_YOUNG_S = 60.0  # a directory this new may not be locked by its owner yet


@contextlib.contextmanager
def private_directory(fallback: Path) -> Iterator[Path]:
    """Make the directory in memory where that is possible, else in TMPDIR or in `fallback`."""
    path = _make(fallback)
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def shared_directory(name: str) -> Iterator[Path]:
    """A directory that our other processes on this host find by its name; gone with the last of them."""
    memory = Path(_SHARED_MEMORY)
    parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
    path = parent / f"{_PREFIX}{name}"
    _remove_leftovers(parent)
    lock = None
    while lock is None:
        lock = _hold(path)
    try:
        _check_shared_room(path)
        yield path
    finally:
        with contextlib.suppress(BlockingIOError):  # the others are still there
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _hold(path: Path) -> int | None:
    """Make and lock a shared directory; None where the last one to leave has just removed it."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRun(f"{path}: ranks cannot share this directory: {error.strerror}") from None
    status = os.fstat(lock)
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(lock)
        raise CannotRun(f"{path}: ranks cannot share this directory: other users own it or may read it")
    fcntl.flock(lock, fcntl.LOCK_SH)
    if path.exists() and os.path.samestat(status, path.stat()):
        return lock
    os.close(lock)
    return None


def _check_shared_room(path: Path) -> None:
    """All ranks must use the same directory, so that none can look for another."""
    try:
        _check_room(path)
    except OSError as error:
        raise CannotRun(f"{path}: ranks cannot share this directory: {error.strerror}") from None


def _make(fallback: Path) -> Path:
    for parent in (Path(_SHARED_MEMORY), None, fallback):
        with contextlib.suppress(OSError):
            directory = Path(tempfile.gettempdir()) if parent is None else parent
            _remove_leftovers(directory)
            return _make_with_room(directory)
    raise CannotRun("temporary files cannot be created in /dev/shm, TMPDIR or the run folder; are they full?")


def _make_with_room(parent: Path) -> Path:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        _check_room(path)
    except OSError:
        path.rmdir()
        raise
    return path


def _check_room(path: Path) -> None:
    """Raise an OSError where files cannot grow: in a full /dev/shm directories can still be made."""
    descriptor, name = tempfile.mkstemp(prefix="room-", dir=path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(_ROOM_BYTES))
    finally:
        Path(name).unlink()


def _remove_leftovers(parent: Path) -> None:
    """Remove the directories of launchers that were killed: those whose lock is free."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_ctime > _YOUNG_S and is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def is_abandoned(path: Path) -> bool:
    """Whether no process holds a lock on the path."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
