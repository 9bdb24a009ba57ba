"""Processes of a soak: found by a mark in their environment, told apart by what they run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from soaking.checks import Sample

MARK = "SCALESCOPE_SOAK_MARK"
_PROC = Path("/proc")
_ZYGOTE, _RANK = "scalescope.worker.process.zygote", "scalescope.worker.process.main"


class MarkedProcess(NamedTuple):
    """A process of a soak."""

    pid: int
    parent: int
    words: tuple[str, ...]
    mark: str
    has_log: bool = False  # whether it writes to a log


def marked_processes(begins: str) -> list[MarkedProcess]:
    """The processes whose marks begin so; those that have ended have no environment any more."""
    return list(_marked(f"{MARK}={begins}".encode()))


def _marked(begins: bytes) -> Iterator[MarkedProcess]:
    for process in _PROC.iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            variables = (process / "environ").read_bytes().split(b"\0")
            mark = next((variable for variable in variables if variable.startswith(begins)), None)
            if mark is None:
                continue
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            parent = int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            name = mark.partition(b"=")[2].decode()
            yield MarkedProcess(int(process.name), parent, tuple(words), name, _has_log(process))


def _has_log(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return (process / "fd" / "1").readlink().suffix == ".log"
    return False


def by_target(processes: list[MarkedProcess], command_lines: set[int]) -> dict[str, list[MarkedProcess]]:
    """The processes by what they are: victims are chosen by that."""
    words_of = {process.pid: process.words for process in processes}
    targets: dict[str, list[MarkedProcess]] = {}
    for process in processes:
        name = _target(process, words_of.get(process.parent, ()), command_lines)
        targets.setdefault(name, []).append(process)
    return targets


def _target(process: MarkedProcess, parent_words: tuple[str, ...], command_lines: set[int]) -> str:
    words = process.words
    if process.pid in command_lines:
        return "command line"
    if any(word.endswith("guard.py") for word in words[:4]):
        return "guard"
    if "unshare" in words or words[:2] == ("sleep", "infinity"):
        return "holder"
    if _ZYGOTE in words:
        # Ranks are forked from a zygote and still bear its name.
        is_forked = _ZYGOTE in parent_words and "-I" not in parent_words
        return "zygote" if not is_forked else "rank" if process.has_log else "other"  # other: it probes
    if _RANK in words:
        return "rank"
    return "command" if "soaked.py" in words else "other"


def sample(pid: int, at_s: float) -> Sample | None:
    """What a process holds now; None where it is gone."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        resident = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
        return Sample(at_s, resident, len(list((_PROC / str(pid) / "fd").iterdir())))
    return None
