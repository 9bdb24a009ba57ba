"""How a training command sees the file system while it is measured: chosen before the first launch."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope import private_view
from scalescope.errors import CannotRun
from scalescope.host_memory import usable_memory
from scalescope.private_view import OVERLAY, REDIRECT, SHARED, View, is_below

_PROGRAM = [sys.executable, "-I", "-S", str(Path(private_view.__file__))]
_TRIAL_LIMIT_S = 30.0
# Folders of caches by the variables that name them, with their places in the home folder.
_CACHES = {
    "XDG_CACHE_HOME": ".cache",
    "HF_HOME": ".cache/huggingface",
    "HF_HUB_CACHE": "",
    "HF_DATASETS_CACHE": "",
    "TORCH_HOME": ".cache/torch",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": ".triton",
    "TRITON_HOME": "",
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
}
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish")
_FILE_SHARE = 0.5  # of the free space, or of memory, that one launch may fill
CHOICES = (
    "use --allow-writes if it may write there, --output-to DIR to redirect what Python writes, or measure "
    "it in a copy of its folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What a launch knows about its command's writes."""

    view: View
    limit_bytes: int  # for what is written
    is_checked_by_ranks: bool = False  # others start the ranks: each forbids writing itself

    @property
    def words(self) -> list[str]:
        """The words in front of the command."""
        return [] if self.is_checked_by_ranks else [*_PROGRAM, str(_file_of(self.view))]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the command: a folder for temporary files that torch's C++ code can write to."""
        if is_below(tempfile.gettempdir(), self.view.writable) or self.view.kind == OVERLAY:
            return {}
        folder = Path(self.view.folder, "tmp")
        folder.mkdir(exist_ok=True)
        return {"TMPDIR": str(folder)}

    def written_bytes(self) -> int:
        """What was written so far, on disk."""
        sizes = 0
        for _, file in private_view.changed_files(Path(self.view.folder)):
            with contextlib.suppress(OSError):
                sizes += file.lstat().st_size
        return sizes


def starts_by_srun(words: Sequence[str]) -> bool:
    """Whether SLURM starts the ranks; they are then not children of our process."""
    return any(Path(word).name == "srun" for word in words)


class Views:
    """Chooses the kind of view once for each command, by trying it."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._kinds: dict[tuple[tuple[str, ...], bool, bool], str] = {}

    def check(self, words: Sequence[str], keep: Path | None, *, several_nodes: bool = False) -> str:
        """The kind of view for a command; CannotRun where its writes cannot be kept apart."""
        by_srun = several_nodes or starts_by_srun(words)
        if by_srun and any(Path(word).name in _SHELLS or word.endswith(".sh") for word in words):
            raise CannotRun(
                "srun starts a shell script, whose writes cannot be isolated from your files; "
                "use --allow-writes if it may write, or start Python directly"
            )
        covered = tuple(_covered(words))
        key = (covered, by_srun, keep is not None)
        if key not in self._kinds:
            self._kinds[key] = self._chosen(covered, by_srun=by_srun, memory_bytes=_memory_bytes(keep))
        kind = self._kinds[key]
        if not kind and keep is None:
            raise CannotRun(
                "the command's writes cannot be isolated from your files here: this system allows "
                f"neither mount namespaces with overlays nor Landlock; {CHOICES}"
            )
        return kind or REDIRECT

    def _chosen(self, covered: Sequence[str], *, by_srun: bool, memory_bytes: int) -> str:
        """The first kind that works here; empty where none does."""
        if by_srun:
            return REDIRECT if private_view.landlock_version() else ""
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="scalescope-view-") as folder:
            for kind in (OVERLAY, REDIRECT):
                view = View(
                    kind=kind,
                    folder=folder,
                    covered=covered,
                    writable=self._writable(covered, [folder], kind),
                    memory_bytes=memory_bytes,
                )
                if _works(view):
                    return kind
        return ""

    @contextlib.contextmanager
    def launch(
        self,
        words: Sequence[str],
        directory: Path,
        *,
        passes: Sequence[Path],
        keep: Path | None,
        several_nodes: bool,
    ) -> Iterator[Writes]:
        """The view of one launch, whose files go with it, or are moved to `keep`."""
        kind = self.check(words, keep, several_nodes=several_nodes)
        by_srun = several_nodes or starts_by_srun(words)
        temporary = (directory / "tmp").resolve()
        on_disk = temporary.is_dir() and not by_srun  # where ranks of other nodes see only `directory`
        folder = (temporary if on_disk else directory) / "view"
        folder.mkdir(mode=0o700)
        covered = _covered(words)
        shared = [str(path.resolve()) for path in (*passes, directory, temporary)]
        view = View(
            kind=kind,
            folder=str(folder.resolve()),
            covered=covered,
            writable=self._writable(covered, [*shared, str(folder.resolve())], kind),
            memory_bytes=_memory_bytes(keep),
            is_enforced=bool(private_view.landlock_version()) or kind == OVERLAY,
        )
        _file_of(view).write_text(view.to_text(), encoding="utf-8")
        try:
            yield Writes(
                view=view,
                limit_bytes=int(_FILE_SHARE * shutil.disk_usage(folder).free),
                is_checked_by_ranks=by_srun,
            )
        finally:
            if keep is not None:
                _move_files(folder, keep)
            private_view.remove_tree(folder)

    def _writable(self, covered: Sequence[str], own: Sequence[str], kind: str) -> list[str]:
        """Paths that stay as they are: what is ours, caches, and of shared folders what is not covered."""
        caches = [path for path in self._caches() if not any(is_below(folder, [path]) for folder in covered)]
        shared = [] if kind == OVERLAY else [path for top in SHARED for path in _around(top, covered)]
        return list(dict.fromkeys((*own, *caches, *shared)))

    def _caches(self) -> Iterator[str]:
        home = self._environment.get("HOME", "")
        for variable, place in _CACHES.items():
            path = self._environment.get(variable) or (str(Path(home, place)) if home and place else "")
            if path and Path(path).is_dir():
                yield str(Path(path).resolve())
        if temporary := self._environment.get("TMPDIR"):
            yield str(Path(temporary).resolve())


def _covered(words: Sequence[str]) -> list[str]:
    """The user's folders: the working folder, and folders that the command names.

    In a shared folder such as /tmp it is the whole folder there that holds them.
    """
    folders = [Path.cwd().resolve()]
    for word in words:
        path = Path(word.partition("=")[2] if word.startswith("-") else word)
        with contextlib.suppress(OSError, ValueError):
            if path.is_absolute() and path.exists() and is_below(str(path.resolve()), SHARED):
                folders.append(path.resolve() if path.is_dir() else path.resolve().parent)
    return list(dict.fromkeys(filter(None, map(_in_shared, folders))))


def _in_shared(folder: Path) -> str:
    """A folder itself, or what holds it in a shared folder; empty for a shared folder itself."""
    for top in ("/dev/shm", *SHARED):  # noqa: S108
        if is_below(str(folder), [top]):
            inside = folder.relative_to(top).parts
            return str(Path(top, inside[0])) if inside else ""
    return str(folder)


def _around(folder: str, covered: Sequence[str]) -> Iterator[str]:
    """A folder, or what is in it beside those that are covered."""
    if folder in covered or not Path(folder).exists():
        return
    if not any(is_below(path, [folder]) for path in covered):
        yield folder
        return
    for entry in sorted(Path(folder).iterdir()):
        if not entry.is_symlink():
            yield from _around(str(entry), covered)


def _works(view: View) -> bool:
    """Whether a process can get that view."""
    file = _file_of(view)
    file.write_text(view.to_text(), encoding="utf-8")
    try:
        tried = subprocess.run(
            [*_PROGRAM, str(file)], capture_output=True, timeout=_TRIAL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def _file_of(view: View) -> Path:
    return Path(view.folder, "view.json")


def _memory_bytes(keep: Path | None) -> int:
    """For copies in memory; none where they are kept, because they go with the namespace."""
    return 0 if keep is not None else int(_FILE_SHARE * (usable_memory() or 0))


def _move_files(folder: Path, target: Path) -> None:
    """Move what was written to a folder of the user, each file below its whole path."""
    for path, file in private_view.changed_files(folder):
        kept = target / path.lstrip("/")
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, kept)
