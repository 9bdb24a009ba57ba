"""AttachJob: what scalescope's code inside a training command needs to know, as plain JSON."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

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
AGAIN = "again_step_s"  # counter: the median step once more, after what followed on the window


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
