"""Redirects what a script writes to copies, where the file system itself cannot be given to it as a copy.

Python's and torch's file functions see one file system: the user's, with the changes of this launch over it.
Changed files lie at `files/PATH` of the view's folder; `removed/` names what the script removed. All
processes of a launch share them, also on other nodes. Landlock stops whatever goes past these functions.
"""

# Paths are texts here: pathlib would call the functions that are replaced.
# ruff: noqa: PTH112, PTH114, PTH118, PTH119

import builtins
import contextlib
import errno
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from scalescope.private_view import View, is_below
from scalescope.worker.hooks.imports import after_import

# The functions of the system, before anybody replaces them.
_open, _os_open, _lstat, _stat, _listdir = builtins.open, os.open, os.lstat, os.stat, os.listdir
_mkdir, _remove, _rmdir, _replace, _readlink = os.mkdir, os.remove, os.rmdir, os.replace, os.readlink
_symlink, _link, _scandir, _chdir, _getcwd = os.symlink, os.link, os.scandir, os.chdir, os.getcwd
_MOST_LINKS = 40
# Programs that change files: started by a script, they would work past the redirection.
_SHELLS = frozenset(("bash", "dash", "ksh", "sh", "zsh"))
_CHANGE_FILES = _SHELLS | frozenset(
    """aws azcopy chmod chown cp curl dd git gsutil gzip install ln mkdir mv rclone rm rmdir rsync scp sed
    tar tee touch truncate unlink unzip wget zip""".split()  # noqa: SIM905
)
_ONLY_READS = re.compile(
    r"git (-\S+ )*(rev-parse|status|describe|log|diff|show|branch|config --get|remote)\b"
)
Refuse = Callable[[str], None]


class Redirection:
    """The changes of a launch over the user's file system."""

    def __init__(self, view: View, refuse: Refuse) -> None:
        self._writable = [path.rstrip("/") for path in (*view.writable, view.folder)]
        self._files = os.path.join(view.folder, "files")
        self._removed = os.path.join(view.folder, "removed")
        self._refuse = refuse
        for folder in (self._files, self._removed):
            with contextlib.suppress(FileExistsError):
                _mkdir(folder, 0o700)

    # Where a path is.

    def seen(self, path: Any, *, follow: bool = True) -> Any:
        """Where the script finds what is at a path: the path itself, or a changed copy."""
        if not self._listed(self._files) and not self._listed(self._removed):
            return path
        name = self._logical(path, follow=follow)
        return path if name is None else self._real(name)

    def _logical(self, path: Any, *, follow: bool = True) -> str | None:
        """The whole path without links, as the script sees it; None where it is not redirected."""
        if isinstance(path, int):
            return None
        try:
            text = os.path.join(self.getcwd(), os.fsdecode(path))
        except (TypeError, OSError):
            return None
        waiting, name, links = text.split("/")[::-1], "", 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                name = name.rpartition("/")[0]
                continue
            inside = f"{name}/{part}"
            target = self._target_of(inside) if follow or waiting else None
            links += target is not None
            if target is None or links > _MOST_LINKS:
                name = inside
            else:
                name = "" if target.startswith("/") else name
                waiting += target.split("/")[::-1]
        name = name or "/"
        return None if self._is_writable(name) else name

    def _target_of(self, name: str) -> str | None:
        try:
            return os.fsdecode(_readlink(self._real(name)))
        except OSError:
            return None

    def _real(self, name: str) -> str:
        if self._is_writable(name):
            return name
        changed = self._files + name
        if _exists(changed) or self._is_removed(name):
            return changed
        return name

    def _is_writable(self, name: str) -> bool:
        return is_below(name, self._writable)

    def _is_removed(self, name: str) -> bool:
        """Whether the script removed what the user has at a path, or a folder above it."""
        while len(name) > 1:
            if _exists(self._mark(name)):
                return True
            name = name.rpartition("/")[0]
        return False

    def _mark(self, name: str) -> str:
        """Where a removed path is recorded: by its folder, to find all of a folder together."""
        folder, _, last = name.rpartition("/")
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        return f"{self._removed}/{digest}/{last}"

    @staticmethod
    def _listed(folder: str) -> bool:
        """Whether there is anything in a folder of ours."""
        try:
            with _scandir(folder) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    # Changes.

    def place(self, path: Any, *, copy: bool) -> Any:
        """Where the script may write what it wants at a path; with what is there now, if that stays."""
        name = self._logical(path)
        if name is None:
            return path
        changed = self._files + name
        if self._folder_for(name) and copy and not _exists(changed) and not self._is_removed(name):
            with contextlib.suppress(FileNotFoundError):
                self._copy(name, changed)
        return changed

    def _folder_for(self, name: str) -> bool:
        """Make the folder of a path among the changes, if the script sees one; otherwise writing fails."""
        folder = name.rpartition("/")[0] or "/"
        try:
            status = _stat(self._real(folder))
        except OSError:
            return False
        if stat.S_ISDIR(status.st_mode) and not _exists(self._files + folder):
            self._folder_for(folder)
            with contextlib.suppress(FileExistsError):
                _mkdir(self._files + folder, stat.S_IMODE(status.st_mode) | 0o700)
        return True

    def _copy(self, name: str, target: str) -> None:
        status = _lstat(name)
        if stat.S_ISLNK(status.st_mode):
            _symlink(_readlink(name), target)
        elif stat.S_ISDIR(status.st_mode):
            _mkdir(target, 0o700)
        else:
            with _open(name, "rb") as source, _open(target, "wb") as copied:
                shutil.copyfileobj(source, copied, 1 << 20)
            shutil.copystat(name, target)

    def _copy_tree(self, name: str) -> None:
        """Bring a folder with all that is in it among the changes."""
        if not _exists(self._files + name):
            self._folder_for(name)
            self._copy(name, self._files + name)
        real = self._files + name
        if stat.S_ISDIR(_lstat(real).st_mode):
            for entry in self.names(name):
                self._copy_tree(f"{name}/{entry}")

    def _note_removed(self, name: str) -> None:
        if not _exists(name):
            return
        mark = self._mark(name)
        with contextlib.suppress(FileExistsError):
            _mkdir(mark.rpartition("/")[0], 0o700)
        _open(mark, "wb").close()

    def names(self, name: str) -> list[str]:
        """What the script sees in a folder."""
        changed, hidden = self._files + name, self._mark(f"{name}/")
        entries = set()
        if _exists(changed):
            entries.update(_listdir(changed))
        if not self._is_removed(name) and _exists(name):
            removed = set(_listdir(hidden)) if _exists(hidden) else set()
            entries.update(set(_listdir(name)) - removed)
        elif not _exists(changed):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return sorted(entries)

    # The functions that replace those of Python.

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set("wax+") & set(mode):
            if "x" in mode:
                self._check_new(file)
            return _open(self.place(file, copy="w" not in mode), mode, *args, **kwargs)
        return _open(self.seen(file), mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            return _os_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return _os_open(self.seen(path), flags, mode)
        if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return _os_open(path, flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            self._check_new(path)
        return _os_open(self.place(path, copy=not flags & os.O_TRUNC), flags, mode)

    def _check_new(self, path: Any) -> None:
        if _exists(self.seen(path, follow=False)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = None if dir_fd is not None else self._logical(path, follow=False)
        if name is None:
            _remove(path, dir_fd=dir_fd)
            return
        real = self._real(name)
        if stat.S_ISDIR(_lstat(real).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if real != name:
            _remove(real)
        self._note_removed(name)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = None if dir_fd is not None else self._logical(path, follow=False)
        if name is None:
            _rmdir(path, dir_fd=dir_fd)
            return
        if self.names(name):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if _exists(self._files + name):
            _rmdir(self._files + name)
        self._note_removed(name)

    def rename(self, source: Any, target: Any, **kwargs: Any) -> None:
        """Both functions of Python: the target is replaced."""
        old, new = self._logical(source, follow=False), self._logical(target, follow=False)
        if (old is None and new is None) or any(value is not None for value in kwargs.values()):
            _replace(source, target, **kwargs)
            return
        if old is None:  # from a folder that is not redirected
            old_path, is_folder = source, stat.S_ISDIR(_lstat(source).st_mode)
        else:
            _lstat(self._real(old))
            self._copy_tree(old)
            old_path = self._files + old
            is_folder = stat.S_ISDIR(_lstat(old_path).st_mode)
        if new is None:
            shutil.move(old_path, target)
        else:
            self._check_target(new, is_folder=is_folder, path=target)
            self._folder_for(new)
            if is_folder:
                self._note_removed(new)
            _move(old_path, self._files + new)
        if old is not None:
            self._note_removed(old)

    def _check_target(self, name: str, *, is_folder: bool, path: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(_lstat(self._real(name)).st_mode):
                if not is_folder:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                if self.names(name):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = None if dir_fd is not None else self._logical(path, follow=False)
        if name is None:
            _mkdir(path, mode, dir_fd=dir_fd)
            return
        self._check_new(path)
        self._folder_for(name)
        _mkdir(self._files + name, mode)

    def symlink(self, source: Any, target: Any, target_is_directory: bool = False, **kwargs: Any) -> None:
        name = self._logical(target, follow=False)
        if name is not None:
            self._check_new(target)
            self._folder_for(name)
        _symlink(source, target if name is None else self._files + name, target_is_directory, **kwargs)

    def link(self, source: Any, target: Any, **kwargs: Any) -> None:
        """A hard link becomes a copy: the user's file must not change with it."""
        name = self._logical(target, follow=False)
        if name is None:
            _link(source, target, **kwargs)
            return
        self._check_new(target)
        self._folder_for(name)
        shutil.copy2(source, self._files + name)

    def listdir(self, path: Any = ".") -> Any:
        name = self._logical(path)
        if name is None or not (_exists(self._files + name) or self._is_changed(name)):
            return _listdir(path)
        names = self.names(name)
        return [os.fsencode(entry) for entry in names] if isinstance(path, bytes) else names

    def _is_changed(self, name: str) -> bool:
        return _exists(self._mark(f"{name}/").rstrip("/")) or self._is_removed(name)

    def scandir(self, path: Any = ".") -> Any:
        name = self._logical(path)
        if name is None or not (_exists(self._files + name) or self._is_changed(name)):
            return _scandir(path)
        return _Entries(self, os.fsdecode(path), self.names(name))

    def chdir(self, path: Any) -> None:
        """Change to the user's folder if it exists: programs and C++ resolve paths from there."""
        name = self._logical(path)
        if name is None:
            _chdir(path)
        else:
            is_new = self._is_removed(name) or not _exists(name)
            _chdir(self._files + name if is_new else name)

    def getcwd(self) -> str:
        return _getcwd().removeprefix(self._files)

    def changing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that changes the file at its first argument."""

        def changed(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int) or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            return original(self.place(path, copy=True), *args, **kwargs)

        return changed

    def reading(self, original: Callable[..., Any], *, follow: bool = True) -> Callable[..., Any]:
        """A function that looks at the file at its first argument."""

        def read(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int) or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            follows = follow and kwargs.get("follow_symlinks", True)
            return original(self.seen(path, follow=follows), *args, **kwargs)

        return read

    # Installing.

    def install(self) -> None:
        """Replace the functions in this process, before the script runs."""
        builtins.open = io.open = self.open
        replaced: dict[str, Callable[..., Any]] = {
            "open": self.os_open,
            "remove": self.remove,
            "unlink": self.remove,
            "rmdir": self.rmdir,
            "rename": self.rename,
            "replace": self.rename,
            "mkdir": self.mkdir,
            "symlink": self.symlink,
            "link": self.link,
            "listdir": self.listdir,
            "scandir": self.scandir,
            "chdir": self.chdir,
            "getcwd": self.getcwd,
            "lstat": self.reading(_lstat, follow=False),
            "readlink": self.reading(_readlink, follow=False),
        }
        replaced |= {name: self.reading(getattr(os, name)) for name in ("stat", "access")}
        replaced["system"] = self._started(vars(os)["system"])
        replaced |= {
            name: self.changing(getattr(os, name)) for name in ("chmod", "chown", "utime", "truncate")
        }
        for name, function in replaced.items():
            setattr(os, name, function)
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        if hasattr(shutil, "_rmtree_impl"):  # Python 3.14 has chosen by then
            shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined]
        self._watch_programs()
        after_import("torch", self._redirect_torch)
        after_import("safetensors", self._redirect_safetensors)

    def _redirect_torch(self) -> None:
        """What torch opens in C++."""
        import torch

        for name, function in (("PyTorchFileWriter", self.changing), ("PyTorchFileReader", self.reading)):
            setattr(torch._C, name, _for_paths(getattr(torch._C, name), function))
        torch.UntypedStorage.from_file = _for_paths(torch.UntypedStorage.from_file, self.reading)  # type: ignore[method-assign]

    def _redirect_safetensors(self) -> None:
        """What safetensors opens in Rust."""
        package: Any = sys.modules["safetensors"]
        if hasattr(package, "serialize_file"):
            original = package.serialize_file

            def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
                return original(tensors, self.place(filename, copy=False), *args, **kwargs)

            package.serialize_file = serialize_file
        if hasattr(package, "safe_open"):
            package.safe_open = self.reading(package.safe_open)

    def _watch_programs(self) -> None:
        original = subprocess.Popen.__init__

        def init(process: Any, args: Any, *more: Any, **kwargs: Any) -> None:
            self._check_program(args if isinstance(args, str | bytes) else list(args))
            original(process, args, *more, **kwargs)

        subprocess.Popen.__init__ = init  # type: ignore[method-assign,assignment]

    def _started(self, original: Callable[[str], int]) -> Callable[[str], int]:
        def started(command: str) -> int:
            self._check_program(command)
            return original(command)

        return started

    def _check_program(self, command: Any) -> None:
        """Refuse a program that changes files: the script would not see its changes."""
        words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes) else command)]
        is_shell = len(words) == 1 or (os.path.basename(words[0]) in _SHELLS and words[1:2] == ["-c"])
        text = words[-1] if len(words) == 1 else words[2] if is_shell else " ".join(words)
        names = re.split(r"[\s;&|()`]+", text) if is_shell else words[:1]
        changing = {os.path.basename(name) for name in names} & _CHANGE_FILES
        if _ONLY_READS.search(text):
            changing.discard("git")
        if changing or (is_shell and re.search(r">\s*(?!/dev/|&)\S", text)):
            self._refuse(f"the script starts `{text[:120]}`, whose writes cannot be isolated on this system")


class _Entries:
    """What os.scandir returns, for a folder with changes."""

    def __init__(self, redirection: Redirection, folder: str, names: list[str]) -> None:
        self._entries: Iterator[_Entry] = (_Entry(redirection, folder, name) for name in names)

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> "_Entry":
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Entry:
    """An entry of a folder, as os.DirEntry."""

    def __init__(self, redirection: Redirection, folder: str, name: str) -> None:
        self._redirection = redirection
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        real = self._redirection.seen(self.path, follow=follow_symlinks)
        return _stat(real) if follow_symlinks else _lstat(real)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, follow_symlinks=False)

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks=follow_symlinks)

    def _is(self, kind: Callable[[int], bool], *, follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except OSError:
            return False


def rename_folders_by_copying() -> None:
    """Let os.rename and os.replace move folders that an unprivileged overlay cannot rename."""

    def renaming(original: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **kwargs: Any) -> None:
            try:
                original(source, target, **kwargs)
            except OSError as error:
                if error.errno != errno.EXDEV or not os.path.isdir(source) or os.path.islink(source):
                    raise
                copy = f"{os.fsdecode(target)}.scalescope-{os.getpid()}"
                shutil.copytree(source, copy, symlinks=True)
                original(copy, target, **kwargs)
                shutil.rmtree(source)

        return rename

    os.rename, os.replace = renaming(os.rename), renaming(os.replace)


def _for_paths(original: Any, function: Callable[[Any], Any]) -> Callable[..., Any]:
    """A constructor that takes a path or a file; only a path is redirected."""
    redirected = function(original)

    def made(file: Any, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(file, str | bytes | os.PathLike)
        return redirected(file, *args, **kwargs) if is_path else original(file, *args, **kwargs)

    return made


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _move(source: str, target: str) -> None:
    """Rename, also from another file system."""
    try:
        _replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)
        _remove(source)
