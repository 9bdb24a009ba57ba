"""The ranks' shared directory: readable by us alone, gone afterwards, leftovers of the dead removed."""

import errno
import fcntl
import os
import stat
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.launch import private_directory as module
from scalescope.launch.private_directory import (
    TEMPORARY,
    own_directories,
    private_directory,
    private_directory_in,
    shared_directory,
)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for /dev/shm."""
    directory = tmp_path / "shm"
    directory.mkdir()
    monkeypatch.setattr(module, "_SHARED_MEMORY", str(directory))
    return directory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for TMPDIR."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def _leave(parent: Path) -> Path:
    left = parent / "scalescope-launch-left"
    left.mkdir()
    (left / "beats").write_bytes(b"\0")
    return left


def _let_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time() + 120
    monkeypatch.setattr(module.time, "time", lambda: later)


def test_it_is_private_and_gone_afterwards_also_after_an_error(memory: Path, tmp_path: Path) -> None:
    with private_directory(tmp_path) as path:
        assert path.parent == memory
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "store").write_text("x")
    assert list(memory.iterdir()) == []
    with pytest.raises(ZeroDivisionError), private_directory(tmp_path):
        raise ZeroDivisionError
    assert list(memory.iterdir()) == []


def test_what_a_killed_launcher_left_is_removed(
    memory: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [_leave(memory), _leave(temporary)]
    _let_time_pass(monkeypatch)
    with private_directory(tmp_path) as path:
        assert [directory for directory in left if directory.exists()] == []
        assert path.is_dir()


def test_young_directories_and_those_of_others_stay(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, foreign = _leave(memory), memory / "something-else"
    foreign.mkdir()
    with private_directory(tmp_path):
        assert left.exists()  # it may not be locked yet
    _let_time_pass(monkeypatch)
    with private_directory(tmp_path):
        assert not left.exists()
    assert foreign.is_dir()


def test_a_directory_in_use_stays_however_old(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _leave(memory)
    _let_time_pass(monkeypatch)
    lock = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with private_directory(tmp_path) as path:
            assert left.exists()
            with private_directory(tmp_path) as other:
                assert path.exists()
                assert other != path
    finally:
        os.close(lock)


def test_without_shared_memory_tmpdir_and_then_the_run_folder_serve(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tmp_path / "file" / "below"
    (tmp_path / "file").touch()
    monkeypatch.setattr(module, "_SHARED_MEMORY", str(refused))
    fallback = tmp_path / "run"
    fallback.mkdir()
    with private_directory(fallback) as path:
        assert path.parent == temporary
    monkeypatch.setattr(tempfile, "tempdir", str(refused))
    with private_directory(fallback) as path:
        assert path.parent == fallback
    with pytest.raises(CannotRun, match="temporary files cannot be created"), private_directory(refused):
        pass


def _let_be_full(monkeypatch: pytest.MonkeyPatch, *full: Path) -> None:
    """Directories in which files can be made and cannot grow, as in a full /dev/shm."""
    make = tempfile.mkstemp

    def mkstemp(**options: Any) -> tuple[int, str]:
        descriptor, name = make(**options)
        if any(Path(name).is_relative_to(directory) for directory in full):
            os.close(descriptor)
            descriptor = os.open("/dev/full", os.O_WRONLY)
        return descriptor, name

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def test_where_shared_memory_is_full_tmpdir_and_then_the_run_folder_serve(
    memory: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = tmp_path / "run"
    fallback.mkdir()
    _let_be_full(monkeypatch, memory)
    with private_directory(fallback) as path:
        assert path.parent == temporary
        assert [entry.name for entry in path.iterdir()] == [TEMPORARY]
    _let_be_full(monkeypatch, memory, temporary)
    with private_directory(fallback) as path:
        assert path.parent == fallback
    _let_be_full(monkeypatch, tmp_path)
    with pytest.raises(CannotRun, match="temporary files cannot be created"), private_directory(fallback):
        pass
    assert [*memory.iterdir(), *temporary.iterdir(), *fallback.iterdir()] == []


@pytest.mark.parametrize(("files", "free", "serves"), [(1000, 255, False), (1000, 256, True), (0, 0, True)])
def test_where_shared_memory_has_few_files_left_tmpdir_serves(
    memory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, files: int, free: int, serves: bool
) -> None:
    system = os.statvfs

    def statvfs(path: Path) -> Any:
        is_memory = Path(path).is_relative_to(memory)
        return SimpleNamespace(f_files=files, f_favail=free) if is_memory else system(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with private_directory(temporary) as path:
        assert path.parent == (memory if serves else temporary)


def test_a_full_shared_directory_is_an_error_because_all_ranks_must_use_the_same(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _let_be_full(monkeypatch, memory)
    with pytest.raises(CannotRun, match=os.strerror(errno.ENOSPC)), shared_directory("77.0.0"):
        pass
    assert list(memory.iterdir()) == []


def test_processes_of_one_host_find_the_same_directory_until_the_last_has_left(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared_directory("77.0.0") as first:
        with shared_directory("77.0.0") as second, shared_directory("77.1.0") as other:
            assert first == second != other
            assert first.parent == memory
            assert stat.S_IMODE(first.stat().st_mode) == 0o700
        assert first.exists() and not other.exists()
        _let_time_pass(monkeypatch)
        with private_directory(tmp_path):
            assert first.exists()  # as long as it is held
    assert not first.exists()


def test_a_directory_that_others_could_have_made_is_refused(memory: Path) -> None:
    (memory / "scalescope-launch-77.0.0").mkdir(mode=0o755)
    (memory / "scalescope-launch-77.1.0").symlink_to(memory)
    for name in ("77.0.0", "77.1.0"):
        with pytest.raises(CannotRun, match="ranks cannot share this directory"), shared_directory(name):
            pass


def test_a_directory_that_is_removed_while_it_is_taken_is_made_anew(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one to leave may remove it between another's opening and locking it."""
    real, times = module._hold, []

    def raced(path: Path) -> int | None:
        times.append(path)
        if len(times) > 1:
            return real(path)
        flock = fcntl.flock
        with monkeypatch.context() as patch:
            patch.setattr(module.fcntl, "flock", lambda lock, how: (path.rmdir(), flock(lock, how)))
            return real(path)

    monkeypatch.setattr(module, "_hold", raced)
    with shared_directory("77.0.0") as path:
        assert path.is_dir()
    assert len(times) == 2


def test_one_that_other_hosts_see_is_where_it_is_asked_for(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    left = _leave(folder)
    _let_time_pass(monkeypatch)
    with private_directory_in(folder) as path:
        assert path.parent == folder
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []
    assert not left.exists()
    folder.rmdir()
    with pytest.raises(CannotRun, match=r"run: could not be written"), private_directory_in(folder):
        pass


def test_temporary_files_go_to_tmpdir_and_with_the_directory(
    memory: Path, temporary: Path, tmp_path: Path
) -> None:
    with private_directory(tmp_path) as path:
        (path / TEMPORARY / "large").write_bytes(b"\0")
        (made,) = temporary.iterdir()
        assert (made / "large").exists()
        begins = own_directories()
        assert [str(directory).startswith(tuple(begins)) for directory in (path, made)] == [True, True]
    assert [*temporary.iterdir(), *memory.iterdir()] == []
