"""What must hold after a soak: nothing lost, doubled, unreadable, left or grown."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Key = tuple[str, int]  # trial and launch
KEPT = ("ok", "oom", "invalid")  # such a launch is not made again
_LEAST_SAMPLES = 20  # of each part of a life that is compared
_HALF_WRITTEN = re.compile(r"\..+\.[a-z0-9_]{8}")
_MEANT_TO_LAST = ("torchinductor_",)  # caches that torch keeps in TMPDIR


class Stored(NamedTuple):
    """The lines of a trials.jsonl."""

    finished: list[Key]
    unreadable: list[str]


class Sample(NamedTuple):
    """What a process holds at a time."""

    at_s: float
    resident_bytes: int
    descriptors: int


class Growth(NamedTuple):
    """How much more a process holds at the end of its life than at the beginning."""

    resident_bytes: int
    descriptors: int


def stored_launches(text: str) -> Stored:
    """The launches that a trials.jsonl has, in its order, and the lines that are not records."""
    finished: list[Key] = []
    unreadable = []
    for line in filter(None, text.split("\n")):
        try:
            record = json.loads(line)
            key, status = (str(record["trial_id"]), int(record["launch"])), record["status"]
        except (ValueError, KeyError, TypeError):
            unreadable.append(line)
            continue
        if status in KEPT:
            finished.append(key)
    return Stored(finished, unreadable)


def whole_lines(text: str) -> str:
    """The text without a last line that is still being written."""
    return text[: text.rfind("\n") + 1]


def lost(before: Collection[Key], now: Collection[Key]) -> list[Key]:
    """Launches that were there and are not any more."""
    return sorted(set(before) - set(now))


def duplicated(finished: Iterable[Key]) -> list[Key]:
    """Launches that were measured, and measured again."""
    return sorted(key for key, count in Counter(finished).items() if count > 1)


def unreadable_files(folder: Path) -> list[Path]:
    """JSON files of a run that cannot be parsed."""
    return [path for path in sorted(folder.rglob("*.json")) if not _is_json(path)]


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def half_written(folder: Path) -> list[Path]:
    """Temporary files of writers that are gone."""
    return [path for path in sorted(folder.rglob(".*")) if _HALF_WRITTEN.fullmatch(path.name)]


def left_lying(directories: Iterable[Path]) -> list[Path]:
    """What lies in directories that were empty, without caches that are meant to last."""
    entries = [path for directory in directories for path in sorted(directory.iterdir())]
    return [path for path in entries if not path.name.startswith(_MEANT_TO_LAST)]


def growth(samples: Sequence[Sample], start_s: float) -> Growth | None:
    """Between the first and the last third of a life without its start; None for one that was too short.

    Of descriptors the smallest number counts, which is that between launches; of memory the median.
    """
    steady = [sample for sample in samples if sample.at_s >= samples[0].at_s + start_s]
    third = len(steady) // 3
    if third < _LEAST_SAMPLES:
        return None
    first, last = steady[:third], steady[-third:]
    resident = [statistics.median(sample.resident_bytes for sample in part) for part in (first, last)]
    descriptors = [min(sample.descriptors for sample in part) for part in (first, last)]
    return Growth(int(resident[1] - resident[0]), descriptors[1] - descriptors[0])


def table(rows: Mapping[str, object]) -> str:
    """Names and numbers below each other."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
