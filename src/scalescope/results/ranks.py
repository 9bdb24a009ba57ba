"""What launchers and ranks share: jobs, heartbeats, calls of collectives, stray files."""

import contextlib
import dataclasses
import json
import mmap
import os
import re
import stat
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from scalescope.errors import CannotRun

# ---- Secondary errors: those that a healthy rank reports only because another rank has ended


_WORDS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "remote process",
    "connection refused",
    "timed out",
    "timeout",
)


def is_secondary_error(message: str) -> bool:
    """Whether the end of another rank explains this error."""
    lowered = message.lower()
    return any(word in lowered for word in _WORDS)


# ---- RankPlacement: where a rank runs, as those who watch a launch are told


UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The host and device of a rank, and the line in which the rank describes them."""

    rank: int
    host: str
    device_name: str
    line: str

    @classmethod
    def from_record(cls, rank: int, raw: Mapping[str, object]) -> "RankPlacement":
        """From what a rank wrote; what is missing is unknown."""
        return cls(
            rank=rank,
            host=str(raw.get("host", UNKNOWN)),
            device_name=str(raw.get("device_name", UNKNOWN)),
            line=str(raw.get("placement", UNKNOWN)),
        )


# ---- AttachJob: what scalescope's code inside a training command needs to know, as plain JSON


# In the environment of a command: the file of its AttachJob.
JOB_VARIABLE = "SCALESCOPE_ATTACH"
# Prefix of counters in a rank's record: what was observed of the script (wrapper, loader, samples ...).
OBSERVED = "observed/"
SUPPRESSED = "suppressed/"  # prefix of counters: calls that were left out, by the name of the function
WRITTEN = "written/"  # prefix of counters: files and bytes that were written to a private view
PROCESSES = "processes"  # folder in `directory`: PID.json of every process that loaded us
REMAINING = "remaining_communication"  # table of a rank without communication: what still communicates


OWN_START = "own_start/"  # prefix of counters: what could not be measured in the same start, and why
# Counters of what was measured after a window: of other levers the mean time of the unchanged step beside
# them, and of everything how long it took.
BESIDE, PHASE_TIME = "beside_step_s", "phase_s"
PHASES_TIME = "phases_s"  # counter of the window's own record: all that followed on it, also what failed
AGAIN = "again_step_s"  # counter: the mean step once more, after what followed on the window


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachPhase:
    """What is measured in the same start after the window: another trial of the same job."""

    settings: dict[str, Any]
    rank_files: list[str]  # by rank
    needs_loader: bool | None = None  # only where the script has a DataLoader, or only where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachJob:
    """One launch of a training command, as its ranks see it."""

    settings: dict[str, Any]
    launch: int
    world_size: int  # that was asked for
    directory: str  # private to this launch: PROCESSES, and a file `extra-RANK.json` of each rank too many
    rank_files: list[str]  # by rank
    heartbeat_file: str
    folder: str  # of the run
    parent: int  # process id of the launcher, with which everything ends; 0: not to be watched
    package_parent: str  # the folder that holds the scalescope package
    environment: list[dict[str, str]] = field(default_factory=list)  # by rank: set before the script reads it
    cpus: list[list[int]] = field(default_factory=list)  # by rank: cores to be pinned to
    node: str = ""  # of several nodes, the one of the launcher; empty where all ranks are on one host

    view: dict[str, Any] | None = None  # of the file system (private_view.View); None: writes take effect
    phases: list[AttachPhase] = field(default_factory=list)  # in their order
    forbids_writing: bool = False  # the ranks themselves must forbid it: they are not below the launcher

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "AttachJob":
        raw = json.loads(text)
        return cls(**{**raw, "phases": [AttachPhase(**phase) for phase in raw["phases"]]})


# ---- RankJob: everything a rank needs to know, as plain JSON


# In a rank's environment: bytes of the host that it may take at most; unset without a limit.
ROOM_VARIABLE = "SCALESCOPE_ROOM_BYTES"
# In the environment of a rank and of all that it starts: measuring calls are refused there.
RANK_VARIABLE = "SCALESCOPE_RANK"
# In the environment of the worker of an attached rank.
STORE_FILE_VARIABLE = "SCALESCOPE_STORE_FILE"  # set where all ranks are on one host, which needs no port
STORE_ADDRESS_VARIABLE = "SCALESCOPE_STORE_ADDRESS"  # that rank 0 listens at; all of its host's without it
INIT_TIMEOUT_VARIABLE = "SCALESCOPE_INIT_TIMEOUT"  # seconds for ranks to find each other
WATCH_VARIABLE = "SCALESCOPE_NODE_WATCH"  # set where the worker's command line samples the node for it
NCCL_LOG_VARIABLE = "SCALESCOPE_NCCL_LOG"  # the file that NCCL logs to, which the worker hands over


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One rank's part of one launch."""

    settings: dict[str, Any]
    launch: int
    rank: int
    local_rank: int
    world_size: int
    store_file: str
    heartbeat_file: str
    rank_file: str
    folder: str  # of the run, for what is too large for a record
    cpus: list[int]
    namespace: str
    group_timeout_s: float
    phases: list[AttachPhase] = field(default_factory=list)  # what is measured after the window, in order

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "RankJob":
        return cls.from_plain(json.loads(text))

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> "RankJob":
        return cls(**{**raw, "phases": [AttachPhase(**phase) for phase in raw["phases"]]})


# ---- The collective that each rank began last: it shows which ranks wait for each other in different ones


_SLOT_BYTES = 256


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A call on the group of all ranks."""

    number: int  # how many calls this rank has made, this one included
    name: str
    tensor: str = ""  # its shape and type, where they must be the same on all ranks

    def __str__(self) -> str:
        return f"{self.name} of {self.tensor}" if self.tensor else self.name


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two ranks whose calls with the same number differ."""

    ranks: tuple[int, int]
    calls: tuple[CollectiveCall, CollectiveCall]


class CallSlot:
    """Where one rank keeps its last call; a write costs about a microsecond."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, call: CollectiveCall) -> None:
        text = json.dumps([call.number, call.name, call.tensor])
        os.pwrite(self._descriptor, text.encode()[:_SLOT_BYTES].ljust(_SLOT_BYTES), 0)


def slot_file(directory: Path, rank: int) -> Path:
    """The slot of a rank, in the directory that the ranks of a launch share."""
    return directory / f"call-{rank}"


def read_calls(directory: Path, world_size: int) -> list[CollectiveCall | None]:
    """The last call of every rank; None of those that recorded none."""
    return [_read(slot_file(directory, rank)) for rank in range(world_size)]


def find_disagreement(calls: Sequence[CollectiveCall | None]) -> Disagreement | None:
    """The first two ranks that are in different collectives at the same point.

    Ranks that made different numbers of calls may only be ahead of each other.
    """
    first_by_number: dict[int, tuple[int, CollectiveCall]] = {}
    for rank, call in enumerate(calls):
        if call is None:
            continue
        other, expected = first_by_number.setdefault(call.number, (rank, call))
        if call != expected:
            return Disagreement(ranks=(other, rank), calls=(expected, call))
    return None


def _read(path: Path) -> CollectiveCall | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        number, name, tensor = json.loads(path.read_bytes())
        return CollectiveCall(number=int(number), name=str(name), tensor=str(tensor))
    return None


# ---- Heartbeats: a small shared-memory file in which every rank writes how far it is


# completed steps, begun steps, stage, phase, slowest warm-up step in seconds, planned steps
_SLOT = struct.Struct("<qqiidq")


class RankStage(IntEnum):
    """How far a rank is in its life; each has a time limit of its own."""

    STARTING = 0
    JOINING = 1
    WARMUP = 2
    STEADY = 3
    TEARDOWN = 4
    DONE = 5


class Phase(IntEnum):
    """Where inside a step a rank is."""

    INPUT = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's position. On a GPU `completed` follows finished work, `begun` what was queued."""

    completed: int
    begun: int
    stage: RankStage
    phase: Phase
    slowest_warmup_s: float
    planned: int = 0  # steps in all; 0 until the rank knows

    @property
    def position(self) -> tuple[int, int, int, int]:
        """Orders ranks by progress: the lowest is the one the others wait for."""
        return self.stage, self.completed, self.begun, self.phase


class Heartbeats:
    """All slots of one launch; a rank writes its own, the launcher reads all."""

    def __init__(self, path: Path, ranks: int, *, create: bool = False) -> None:
        if create:
            _create(path, _SLOT.size * ranks)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SLOT.size * ranks)

    def write(self, rank: int, beat: Beat) -> None:
        _SLOT.pack_into(
            self._memory,
            rank * _SLOT.size,
            beat.completed,
            beat.begun,
            beat.stage,
            beat.phase,
            beat.slowest_warmup_s,
            beat.planned,
        )

    def read(self, rank: int) -> Beat:
        completed, begun, stage, phase, slowest, planned = _SLOT.unpack_from(self._memory, rank * _SLOT.size)
        return Beat(completed, begun, RankStage(stage), Phase(phase), slowest, planned)

    def write_position(self, rank: int, completed: int, begun: int, phase: int) -> None:
        """The write of the timed loop: no object is made, stage and limits stay as they are."""
        _POSITION.pack_into(self._memory, rank * _SLOT.size, completed, begun)
        _PHASE.pack_into(self._memory, rank * _SLOT.size + _PHASE_OFFSET, phase)


def _create(path: Path, size: int) -> None:
    """Write the whole file: where /dev/shm is full, a file of that size without content ends us by SIGBUS."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(size))
    except OSError as error:
        raise CannotRun(f"{path}: could not be written: {error.strerror}") from None


_POSITION = struct.Struct("<qq")
_PHASE = struct.Struct("<i")
_PHASE_OFFSET = _POSITION.size + 4


# ---- Half-written files: what `write_atomically` leaves behind when its process is killed


# As tempfile names them: a dot, the name that the file would have got, and eight random characters.
_STRAY = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}")
_UNLOCKED = ("report.html", "report.json")  # `scalescope report` may write them now


def remove_stray_files(run_folder: Path, written: Collection[str]) -> None:
    """Remove half-written files of ranks and of those that are `written` by whoever holds the run folder.

    Call it only while the folder is held: no one else writes such files then.
    """
    for path, name in _hidden_files(run_folder):
        if name in written and name not in _UNLOCKED:
            _remove(path)
    if not (run_folder / "ranks").is_symlink():
        for path, name in _hidden_files(run_folder / "ranks"):
            if name.endswith(".json"):
                _remove(path)


def _hidden_files(folder: Path) -> list[tuple[Path, str]]:
    """Files that may be half-written, with the names they would have got."""
    with contextlib.suppress(OSError):
        matches = [(path, _STRAY.fullmatch(path.name)) for path in folder.iterdir()]
        return [(path, match["name"]) for path, match in matches if match is not None]
    return []


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
