"""The ledger: what was predicted beside what was measured, which tells how wide new intervals must be.

The user's ledger is a file of JSON lines; ours is part of the package. Lines that cannot be read are reported
and left out.
"""

import dataclasses
import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from scalescope.errors import StorageError
from scalescope.results.files import append_bytes
from scalescope.results.run import few_warnings

LEDGER_VERSION = "1.0"
FILE = "ledger.jsonl"
VARIABLE = "SCALESCOPE_LEDGER"
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

    strategy: str
    backend: str  # ranks that share cores behave unlike GPUs
    curve: CurveOrigin
    is_extrapolated: bool = False

    @property
    def name(self) -> str:
        """`ddp over nccl, curve of other ranks, extrapolated`."""
        curve = _CURVES[self.curve]
        extrapolated = ", extrapolated" if self.is_extrapolated else ""
        return f"{self.strategy} over {self.backend}, {curve}{extrapolated}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One prediction of a step, with its 90 % interval, and the measurement that it met."""

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


def ledger_file() -> Path:
    """The user's ledger; a relative XDG_DATA_HOME does not count, as its specification says."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    root = data if data.is_absolute() else Path.home() / ".local" / "share"
    return root / "scalescope" / FILE


def read_ledger(*, shipped: bool = True) -> Ledger:
    """The shipped entries and then the user's; of the same prediction of the same measurement the first."""
    sources: list[tuple[str, bytes]] = []
    warnings: list[str] = []
    if shipped:
        sources.append((f"shipped {FILE}", shipped_ledger()))
    path = ledger_file()
    try:
        sources.append((str(path), path.read_bytes()))
    except FileNotFoundError:
        pass
    except OSError as error:
        warnings.append(f"{path}: cannot be read: {error.strerror}")
    entries: dict[Key, LedgerEntry] = {}
    for name, content in sources:
        for entry in _entries(name, content, warnings):
            entries.setdefault(entry.key, entry)
    return Ledger(tuple(entries.values()), few_warnings(warnings, path))


def shipped_ledger() -> bytes:
    """Predictions of ours that met measurements (benchmarks/prediction.py)."""
    return resources.files("scalescope.hardware").joinpath(FILE).read_bytes()


def add_to_ledger(entries: Iterable[LedgerEntry]) -> int:
    """Append what the user's ledger does not have, by one write while no other process writes; how many.

    StorageError where it cannot be written.
    """
    new = {entry.key: entry for entry in entries}
    if not new:
        return 0
    path = ledger_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # gone when the file is closed
            known = {entry.key for entry in _entries(str(path), path.read_bytes(), [])}
            lines = [ledger_line(entry) for key, entry in new.items() if key not in known]
            if lines:
                append_bytes(descriptor, "".join(lines).encode())
            return len(lines)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{path}: could not be written: {error.strerror}") from None


def ledger_line(entry: LedgerEntry) -> str:
    """The entry as a line of the file."""
    content = {"ledger_version": LEDGER_VERSION, **dataclasses.asdict(entry)}
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _entries(name: str, content: bytes, warnings: list[str]) -> Iterator[LedgerEntry]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _parsed(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error) if type(error) is ValueError else "not an entry"
            warnings.append(f"{name}:{number}: left out: {why}")


def _parsed(line: bytes) -> LedgerEntry:
    raw = json.loads(line)
    if raw["ledger_version"] != LEDGER_VERSION:
        raise ValueError(f"ledger version {raw['ledger_version']} is not {LEDGER_VERSION}")
    kind = raw["kind"]
    if kind["curve"] not in get_args(CurveOrigin):
        raise ValueError(f"unknown origin of times: {kind['curve']!r}")
    times = [float(raw[name]) for name in ("predicted_s", "low_s", "high_s", "measured_s")]
    if not all(math.isfinite(time_s) and time_s > 0.0 for time_s in times):
        raise ValueError("a time is not above 0")
    predicted_s, low_s, high_s, measured_s = times
    return LedgerEntry(
        kind=PredictionKind(
            strategy=str(kind["strategy"]),
            backend=str(kind["backend"]),
            curve=kind["curve"],
            is_extrapolated=bool(kind["is_extrapolated"]),
        ),
        world_size=int(raw["world_size"]),
        curve_ranks=None if raw["curve_ranks"] is None else int(raw["curve_ranks"]),
        predicted_s=predicted_s,
        low_s=low_s,
        high_s=high_s,
        measured_s=measured_s,
        predicted_exposed_s=_time(raw["predicted_exposed_s"]),
        measured_exposed_s=_time(raw["measured_exposed_s"]),
        setup=dict(raw["setup"]),
        run=str(raw["run"]),
        trial_id=str(raw["trial_id"]),
        environment_id=str(raw["environment_id"]),
        date=str(raw["date"]),
    )


def _time(value: Any) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError("a time is not finite")
    return float(value)
