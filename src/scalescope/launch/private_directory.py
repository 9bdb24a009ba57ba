"""A directory that only we can read, for what the ranks of one launch share; removed with its owner."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.private_view import remove_tree

_PREFIX = "scalescope-launch-"
_TOKEN = secrets.token_hex(4)
TEMPORARY = "tmp"  # in the directory: where ranks keep files that may be too large for memory
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a directory there that only we can read
_ROOM_BYTES = 1 << 18  # for the heartbeats, the store and the jobs of one launch
_ROOM_FILES = 256  # a job for every rank, and what a training command's processes report
_YOUNG_S = 60.0  # a directory this new may not be locked by its owner yet


@contextlib.contextmanager
def private_directory(fallback: Path) -> Iterator[Path]:
    """Make the directory in memory where that is possible, else in TMPDIR or in `fallback`."""
    with _kept(_make(fallback)) as path, _temporary_directory(path):
        yield path


def own_directories() -> list[str]:
    """How the paths of all our private directories begin: for whoever removes them when we are killed."""
    return [f"{parent}/{_own_prefix()}" for parent in (_SHARED_MEMORY, tempfile.gettempdir())]


def _own_prefix() -> str:
    """Ours alone, also among processes of other containers, and after a fork."""
    return f"{_PREFIX}{os.getpid()}-{_TOKEN}-"


@contextlib.contextmanager
def _temporary_directory(path: Path) -> Iterator[None]:
    """Give a directory one for temporary files, on the disk where TMPDIR is; without room there is none."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            _remove_leftovers(Path(tempfile.gettempdir()))
            made = Path(tempfile.mkdtemp(prefix=_own_prefix(), dir=tempfile.gettempdir()))
            stack.enter_context(_kept(made))
            (path / TEMPORARY).symlink_to(made)
        yield


@contextlib.contextmanager
def private_directory_in(parent: Path) -> Iterator[Path]:
    """Make the directory in a folder that other hosts see too."""
    _remove_leftovers(parent)
    try:
        path = _make_with_room(parent)
    except OSError as error:
        raise CannotRun(f"{parent}: could not be written: {error.strerror}") from None
    with _kept(path):
        yield path


@contextlib.contextmanager
def _kept(path: Path) -> Iterator[Path]:
    """Keep a directory locked, and remove it at the end."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(lock)
        remove_tree(path)


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
    """All ranks must use the same directory; none may search for another."""
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
    path = Path(tempfile.mkdtemp(prefix=_own_prefix(), dir=parent))
    try:
        _check_room(path)
    except OSError:
        path.rmdir()
        raise
    return path


def _check_room(path: Path) -> None:
    """Raise an OSError where files cannot be made or grow: a full /dev/shm may still have directories."""
    system = os.statvfs(path)
    if system.f_files and system.f_favail < _ROOM_FILES:  # 0 where the number of files has no limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
