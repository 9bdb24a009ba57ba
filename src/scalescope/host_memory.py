"""How much memory the processes of this host may use together, as the system says it."""

import re
from pathlib import Path


def usable_memory(root: Path = Path("/")) -> int | None:
    """Physical memory, or less where a control group limits it; None where the system does not say."""
    limits = group_files(root, "memory.max", "memory.limit_in_bytes")
    sizes = [_physical(root / "proc/meminfo"), *map(_limit, limits)]
    return min((size for size in sizes if size is not None), default=None)


def _physical(path: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", read_text(path), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _limit(path: Path) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None  # "max" means no limit


def group_files(root: Path, name: str, name_of_first_version: str) -> list[Path]:
    """The files of this process's control group and of all its parents, in both versions of groups."""
    files: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            files += _up_from(root / "sys/fs/cgroup", group, name)
        elif "memory" in controllers.split(","):
            files += _up_from(root / "sys/fs/cgroup/memory", group, name_of_first_version)
    return files


def _up_from(top: Path, group: str, name: str) -> list[Path]:
    """The file of a group and of its parents up to `top`; a container may see only `top` itself."""
    folder = top / group.lstrip("/")
    parents = [parent for parent in folder.parents if parent.is_relative_to(top)]
    return [path / name for path in (folder, *parents)]


def read_text(path: Path) -> str:
    """A file of the system; empty where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
