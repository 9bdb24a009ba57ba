"""Private view: what a training command writes while it is measured never reaches the user's folders.

`python -I -S private_view.py VIEW.json [COMMAND …]` runs as a file alone and turns into the command:

- `overlay`: every folder lies below an overlay in a mount namespace of its own, unprivileged where necessary.
  The command sees what it wrote, renamed and removed; whatever cannot have an overlay is read-only;
- `redirect`: Landlock forbids writing outside `writable`, and Python's and torch's file functions are
  redirected to copies (worker/hooks/redirection.py).

Caches, temporary folders and the run folder stay as they are. Without a command the view is only tried.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OVERLAY, REDIRECT = "overlay", "redirect"
_SOURCE = "scalescope"  # names our overlays in the list of mounts
# Folders of the system and for temporary files, which are never covered as a whole.
SHARED = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/run")  # noqa: S108
_VIRTUAL = frozenset(
    """autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs
    mqueue nsfs proc pstore rpc_pipefs securityfs sysfs tracefs""".split()  # noqa: SIM905
)
_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _READ_ONLY, _THIS_FOLDER = 442, 1, -100
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
# Rights of Landlock: to write a file, to remove and make entries (bits 4 to 12), to move them, to truncate.
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITING = _WRITE_FILE | sum(1 << bit for bit in range(4, 14)) | _TRUNCATE
_OLDEST_LANDLOCK = 2  # its first version forbids every move between two folders
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38
_MOST_OWNERS = 20_000  # files whose owner is looked at
_DEEPEST = 3  # levels below a folder that cannot have an overlay itself


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How one launch of a command sees the file system."""

    kind: str  # OVERLAY or REDIRECT
    folder: str  # holds what the command writes
    covered: Sequence[str]  # folders of the user, which are covered also where a shared one holds them
    writable: Sequence[str]  # paths that are not covered: caches, the run folder, shared folders
    is_enforced: bool = True  # otherwise only Python's and torch's functions are redirected
    memory_bytes: int = 0  # for copies in memory, where the file system of `folder` cannot hold them

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "View":
        return cls(**json.loads(text))


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Whether a path is one of the folders or lies below one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def main(arguments: Sequence[str]) -> None:
    with open(arguments[0], encoding="utf-8") as file:  # noqa: PTH123
        view = View.from_text(file.read())
    parent, command = os.getppid(), list(arguments[1:])
    try:
        if view.kind == OVERLAY:
            _enter_namespace(view)
        elif view.is_enforced:
            forbid_writing(view.writable)
        # A change of credentials clears it.
        _libc().prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if not command:
            return
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as problem:
        what = problem.filename or (command[0] if command else "this system")
        print(f"{what}: could not be started: {problem.strerror}", file=sys.stderr, flush=True)
        os._exit(1)


# Overlays in a mount namespace.


def _enter_namespace(view: View) -> None:
    """Cover every folder by an overlay whose changes are kept apart; the rest becomes read-only."""
    working_folder = os.getcwd()  # noqa: PTH109
    is_root = _unshare()
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    mounts = {path: kind for path, kind in _mount_points() if path != "/"}
    for path in SHARED:  # as mounts of their own they stay writable below a read-only root folder
        if path not in mounts and Path(path).is_dir() and not Path(path).is_symlink():
            _mount(path, path, None, _BIND | _RECURSIVE)
    top = [entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)]
    real = [path for path, kind in mounts.items() if kind not in _VIRTUAL and Path(path).is_dir()]
    wanted = {path for path in (*top, *real) if not is_below(path, SHARED)} | set(view.covered)
    kept = {
        path
        for path in (*mounts, *view.writable, *_listening_sockets())
        if path not in wanted and (not is_below(path, SHARED) or is_below(path, view.covered))
    }
    with _held([*wanted, *kept, view.folder]) as held:
        overlays = _Overlays(view, held, has_privileges=is_root)
        for path in sorted(wanted & held.keys(), key=_depth):
            overlays.cover(path)
        for path in sorted(kept & held.keys(), key=_depth):
            with contextlib.suppress(OSError):  # its folder is not covered, or it is below one of these
                _mount(_path_of(held[path]), path, None, _BIND | _RECURSIVE)
    with contextlib.suppress(OSError):  # an old system: entries of the root folder itself stay writable
        _make_read_only("/")
    _check_covered(view.covered)
    if not is_root:
        _check_owners(view.covered)
    os.chdir(working_folder)


class _Overlays:
    """Mounts overlays, each with a folder for what is changed below it."""

    def __init__(self, view: View, held: dict[str, int], *, has_privileges: bool) -> None:
        self._held, self._number, self._covered = held, 0, view.covered
        self._layers = Path(_path_of(held[view.folder]))  # where it is now: its path may become read-only
        # An overlay of an unprivileged user cannot rename folders that were there before.
        self._options = "redirect_dir=on" if has_privileges else "userxattr"
        if not self._can_hold_changes():
            if not view.memory_bytes:
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), view.folder)
            _mount("tmpfs", view.folder, "tmpfs", 0, f"size={view.memory_bytes},mode=700")
            self._layers = Path(view.folder)

    def _can_hold_changes(self) -> bool:
        """Try an overlay of empty folders: file systems such as overlayfs itself and NFS refuse."""
        folders = [self._layers / f"try-{name}" for name in ("lower", "changes", "work", "mount")]
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack:
            lower, upper, work = (
                _path_of(stack.enter_context(_opened(str(folder)))) for folder in folders[:3]
            )
            layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
            try:
                _mount(_SOURCE, str(folders[3]), "overlay", 0, f"{layers},{self._options}")
            except OSError:
                return False
        _libc().umount2(os.fsencode(folders[3]), _DETACH)
        with contextlib.suppress(OSError):
            (folders[2] / "work").chmod(0o700)
        return True

    def cover(self, path: str, depth: int = 0) -> None:
        """Mount an overlay on a folder, or on each folder in it where it cannot have one."""
        try:
            self._mount_overlay(path)
            self._number += 1
        except OSError:
            if depth == _DEEPEST:
                raise
            self._cover_children(path, depth)

    def _mount_overlay(self, path: str) -> None:
        upper, work = (self._layers / f"{self._number}-{name}" for name in ("changes", "work"))
        for folder in (upper, work):
            folder.mkdir(mode=0o700, exist_ok=True)
        lower = self._held.get(path)
        with contextlib.ExitStack() as stack:
            # Paths may have any character, and options are separated by commas and colons.
            fds = [stack.enter_context(_opened(str(folder))) for folder in (upper, work)]
            if lower is None:
                lower = stack.enter_context(_opened(path))
            upper_path, work_path = map(_path_of, fds)
            status = os.stat(lower)  # noqa: PTH116
            upper.chmod(stat.S_IMODE(status.st_mode))
            with contextlib.suppress(OSError):
                os.chown(upper, status.st_uid, status.st_gid)
            layers = f"lowerdir={_path_of(lower)},upperdir={upper_path},workdir={work_path}"
            _mount(_SOURCE, path, "overlay", 0, f"{layers},{self._options}")
        with contextlib.suppress(OSError):
            (work / "work").chmod(0o700)  # whoever removes it later must be able to read it
        (self._layers / f"{self._number}-path").write_text(path, encoding="utf-8", errors="surrogateescape")

    def _cover_children(self, path: str, depth: int) -> None:
        """Make a folder read-only and cover what is in it; what is mounted there has its own turn."""
        _mount(path, path, None, _BIND | _RECURSIVE)
        _make_read_only(path)
        for entry in os.scandir(path):
            has_own_turn = entry.path in self._held or is_below(entry.path, SHARED)
            # What we may not write to can stay read-only, unless a folder of the user is inside.
            is_wanted = os.access(entry.path, os.W_OK) or any(
                is_below(folder, [entry.path]) for folder in self._covered
            )
            if entry.is_dir(follow_symlinks=False) and is_wanted and not has_own_turn:
                with contextlib.suppress(OSError):  # it stays read-only
                    self.cover(entry.path, depth + 1)


def _unshare() -> bool:
    """Enter a mount namespace; returns whether we are privileged outside of it too."""
    if _libc().unshare(_NEW_NAMESPACE) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc().unshare(_NEW_NAMESPACE | _NEW_USER), "user namespaces")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    return False


def _mount_points() -> Iterator[tuple[str, str]]:
    """Path and type of every mount, in their order."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        for line in file:
            fields, _, rest = line.partition(" - ")
            yield _unescaped(fields.split()[4]), rest.split()[0]


def _listening_sockets() -> Iterator[str]:
    """Paths at which processes of this host listen: an overlay would hide them."""
    with contextlib.suppress(OSError), open("/proc/net/unix", errors="surrogateescape") as file:  # noqa: PTH123
        for line in file:
            path = line.rstrip("\n").split(" ", 8)[-1].strip()
            if path.startswith("/") and Path(path).is_socket():
                yield path


def _unescaped(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _check_covered(folders: Sequence[str]) -> None:
    """Refuse a view in which a user's folder has no overlay, or is hidden by another mount."""
    mounts = list(_mount_points())
    for folder in folders:
        above = [(path, kind) for path, kind in mounts if path == "/" or is_below(folder, [path])]
        if max(above, key=lambda mount: (len(mount[0]), mounts.index(mount)))[1] != "overlay":
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), folder)


def _check_owners(folders: Sequence[str]) -> None:
    """Refuse folders with files of another user or group: an unprivileged overlay cannot copy these."""
    looked_at = 0
    for folder in folders:
        for path, names, files in os.walk(folder) if os.access(folder, os.W_OK) else ():
            for name in (".", *names, *files):
                status = os.lstat(os.path.join(path, name))  # noqa: PTH118
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW), path)
            looked_at += len(names) + len(files)
            if looked_at > _MOST_OWNERS:
                return


@contextlib.contextmanager
def _held(paths: Sequence[str]) -> Iterator[dict[str, int]]:
    """Descriptors of what is at these paths now; what is not there, or not for us, is left out."""
    with contextlib.ExitStack() as stack:
        held = {}
        for path in paths:
            try:
                held[path] = stack.enter_context(_opened(path))
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE):
                    raise
        yield held


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _checked(_libc().mount(*words[:3], ctypes.c_ulong(flags), words[3]), target)


def _make_read_only(path: str) -> None:
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(_libc().syscall(_MOUNT_SETATTR, _THIS_FOLDER, os.fsencode(path), 0, attributes, size), path)


# Landlock.


def forbid_writing(writable: Sequence[str]) -> None:
    """Let this process and all that it starts write nowhere but below these paths."""
    version = landlock_version()
    if version < _OLDEST_LANDLOCK:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), "Landlock")
    handled = _WRITING if version > _OLDEST_LANDLOCK else _WRITING & ~_TRUNCATE
    attributes = ctypes.c_uint64(handled)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    rules = _checked(_libc().syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), size, 0), "Landlock")
    try:
        for path in writable:
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
                allowed = handled if is_folder else handled & (_WRITE_FILE | _TRUNCATE)
                _checked(_libc().syscall(_LANDLOCK_ADD, rules, 1, _PathRule(allowed, descriptor), 0), path)
        _checked(_libc().prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "Landlock")
        _checked(_libc().syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    finally:
        os.close(rules)


def _PathRule(allowed: int, descriptor: int) -> "ctypes.Array[ctypes.c_char]":
    """What may be done below a path, as the system wants it: without space between the fields."""
    packed = allowed.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
    return ctypes.create_string_buffer(packed, len(packed))


def landlock_version() -> int:
    """0 where the system has no Landlock, or does not allow it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(returned: int, what: str) -> int:
    if returned < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return returned


# What was written.


def changed_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each file that was written: its path as the command sees it, and where it lies."""
    for note in folder.glob("*-path"):
        changes = note.with_name(note.name.replace("-path", "-changes"))
        base = note.read_text(encoding="utf-8", errors="surrogateescape")
        yield from _files_below(changes, base)
    yield from _files_below(folder / "files", "/")


def _files_below(folder: Path, base: str) -> Iterator[tuple[str, Path]]:
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(file.lstat().st_mode):
                    yield str(Path(base) / file.relative_to(folder)), file


def remove_tree(folder: Path) -> None:
    """Remove a folder, also where an overlay left folders in it that nobody may read."""
    for path, names, _ in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                if not Path(path, name).is_symlink():
                    Path(path, name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
