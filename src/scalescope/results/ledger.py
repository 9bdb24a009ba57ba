"""The ledger: what was predicted beside what was measured, which tells how wide new intervals must be.

The user's ledger is a file of JSON lines; ours is part of the package. The user's may be damaged, huge,
locked or not a file: it is read as files of run folders are, and what is wrong with it is one warning.
"""

import dataclasses
import fcntl
import functools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scalescope.errors import StorageError
from scalescope.quantities import counted
from scalescope.results.files import append_bytes, to_line
from scalescope.results.printable import printable
from scalescope.results.stored.files import Unreadable, open_regular, read_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FILE = "ledger.jsonl"
VARIABLE = "SCALESCOPE_LEDGER"
LARGEST_BYTES = 16 << 20  # of the user's ledger: more than 20,000 predictions
LOCK_S = 2.0  # how long another process may hold the lock
NO_HOME = f"no home folder exists for the user's ledger; {VARIABLE}=FILE names one"
_LONGEST_S, _SHORTEST_S = 1e9, 1e-12
_MOST_RANKS = 1 << 40
_LONGEST_NAME = 100
_LONGEST_WARNING = 300
_STRICT = {"allow_inf_nan": False, "strict": True}
# Times of collectives: measured on as many ranks, on another number of ranks, or not measured at all.
CurveOrigin = Literal["same ranks", "other ranks", "assumed"]
_CURVES: Mapping[CurveOrigin, str] = {
    "same ranks": "curve of as many ranks",
    "other ranks": "curve of other ranks",
    "assumed": "assumed network",
}
Key = tuple[str, str, str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionKind:
    """What makes errors of predictions comparable."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    strategy: str
    backend: str  # ranks that share cores behave unlike GPUs
    curve: CurveOrigin
    is_extrapolated: bool = False
    is_fitted: bool = False  # to steps on several ranks of the same machine

    @property
    def evidence(self) -> tuple[str, CurveOrigin, bool]:
        """What decides how far off a prediction may be."""
        return self.backend, self.curve, self.is_fitted

    @property
    def name(self) -> str:
        """`ddp over nccl, curve of other ranks, fitted, extrapolated`."""
        curve = _CURVES[self.curve]
        fitted = ", fitted" if self.is_fitted else ""
        extrapolated = ", extrapolated" if self.is_extrapolated else ""
        return f"{self.strategy} over {self.backend}, {curve}{fitted}{extrapolated}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One prediction of a step, with its 90 % interval, and the measurement that it met."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    ledger_version: Literal["1.0"] = "1.0"
    kind: PredictionKind
    world_size: int
    curve_ranks: int | None  # on how many ranks the collectives were measured; None where they were not
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    predicted_exposed_s: float | None = None
    measured_exposed_s: float | None = None
    setup: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""  # when the run began: its folder may be moved
    trial_id: str = ""
    environment_id: str = ""
    date: str = ""

    @property
    def key(self) -> Key:
        """The same for the same kind of prediction of the same measurement."""
        return self.run, self.trial_id, self.kind.name, self.curve_ranks

    @property
    def family(self) -> str:
        """What was trained, and how it was spread: `ddp mlp`."""
        return f"{self.kind.strategy} {self.setup.get('workload', '')}"

    @property
    def error(self) -> float:
        """ln(measured ÷ predicted)."""
        return math.log(self.measured_s / self.predicted_s)

    @property
    def exposed_error(self) -> float | None:
        """Measured minus predicted exposed communication, as a share of the step; None is unknown."""
        if self.predicted_exposed_s is None or self.measured_exposed_s is None:
            return None
        return (self.measured_exposed_s - self.predicted_exposed_s) / self.measured_s

    @property
    def is_covered(self) -> bool:
        """Whether the measurement lies in the predicted interval."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True)
class Ledger:
    """Entries in the order in which they were made, and what could not be read."""

    entries: tuple[LedgerEntry, ...] = ()
    warnings: tuple[str, ...] = ()


def ledger_file() -> Path | None:
    """The user's ledger; None without a home folder.

    A relative XDG_DATA_HOME does not count, as its specification says.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        root = data if data.is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError:  # neither HOME nor an entry of the user
        return None
    return root / "scalescope" / FILE


def read_ledger(*, shipped: bool = True) -> Ledger:
    """The shipped entries and then the user's; of the same prediction of the same measurement the first."""
    entries: dict[Key, LedgerEntry] = {}
    warnings: list[str] = []
    if shipped:
        for entry in _entries(shipped_ledger(), []):
            entries.setdefault(entry.key, entry)
    path = ledger_file()
    if path is None:
        return Ledger(tuple(entries.values()), (NO_HOME,))
    try:
        damaged: list[str] = []
        for entry in _entries(read_bytes(path, LARGEST_BYTES), damaged):
            entries.setdefault(entry.key, entry)
        if damaged:
            lines = f"{counted(len(damaged), 'damaged line')} left out"
            warnings.append(f"{path}: {lines}; the first: {damaged[0]}")
    except FileNotFoundError:
        pass
    except OSError as error:
        warnings.append(f"{path}: cannot be read: {error.strerror}")
    except Unreadable as error:
        warnings.append(f"{path}: cannot be read: {error}")
    return Ledger(tuple(entries.values()), tuple(map(printable, warnings)))


def shipped_ledger() -> bytes:
    """Predictions of ours that met measurements (benchmarks/prediction.py)."""
    return resources.files("scalescope.hardware").joinpath(FILE).read_bytes()


def add_to_ledger(entries: Iterable[LedgerEntry], *, lock_s: float = LOCK_S) -> int:
    """Append what the user's ledger does not have, by one write while no other process writes; how many.

    StorageError where it cannot be written, or another process holds its lock for `lock_s`.
    """
    new = {entry.key: line for entry in entries if (line := _line_to_read_back(entry)) is not None}
    if not new:
        return 0
    path = ledger_file()
    if path is None:
        raise StorageError(NO_HOME)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(descriptor, lock_s)  # gone when the file is closed
            known = {entry.key for entry in _entries(read_bytes(path, LARGEST_BYTES), [])}
            lines = [line for key, line in new.items() if key not in known]
            if lines:
                append_bytes(descriptor, "".join(lines).encode())
            return len(lines)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{path}: could not be written: {error.strerror}") from None
    except Unreadable as error:
        raise StorageError(f"{path}: could not be written: {error}") from None


def _lock(descriptor: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Unreadable(f"another process held its lock for {within_s:g} s") from None
        time.sleep(0.02)


def ledger_line(entry: LedgerEntry) -> str:
    """The entry as a line of the file."""
    return to_line(dataclasses.asdict(entry))


def _line_to_read_back(entry: LedgerEntry) -> str | None:
    """The line of an entry; None where a reader would refuse it: a prediction from damaged measurements."""
    try:
        line = ledger_line(entry)
        _parsed(line.encode())
    except ValueError:
        return None
    return line


def _entries(content: bytes, damaged: list[str]) -> Iterator[LedgerEntry]:
    """The entries of a file; `damaged` gets what is wrong with the other lines."""
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _parsed(line)
        except ValueError as error:
            damaged.append(f"line {number}: {error}"[:_LONGEST_WARNING])


@functools.cache
def _adapter() -> "TypeAdapter[LedgerEntry]":
    from pydantic import TypeAdapter

    return TypeAdapter(LedgerEntry)


def _parsed(line: bytes) -> LedgerEntry:
    """One line of a ledger; a ValueError says what is wrong with it."""
    from pydantic import ValidationError

    from scalescope.results.stored.records import problem_of

    try:
        entry = _adapter().validate_json(line)
    except ValidationError as error:
        raise ValueError(problem_of(error, "not an entry")) from None
    times_s = (entry.predicted_s, entry.low_s, entry.high_s, entry.measured_s)
    if not all(_SHORTEST_S <= time_s <= _LONGEST_S for time_s in times_s):
        raise ValueError("not a plausible time")
    exposed_s = (entry.predicted_exposed_s or 0.0, entry.measured_exposed_s or 0.0)
    if not all(abs(time_s) <= _LONGEST_S for time_s in exposed_s):
        raise ValueError("not a plausible time")
    if not all(1 <= ranks <= _MOST_RANKS for ranks in (entry.world_size, entry.curve_ranks or 1)):
        raise ValueError("not a plausible number of ranks")
    if max(len(entry.kind.strategy), len(entry.kind.backend)) > _LONGEST_NAME:
        raise ValueError("kind: a name that is too long")
    return entry
