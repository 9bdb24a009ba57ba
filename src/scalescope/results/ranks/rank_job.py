"""RankJob: everything a rank needs to know, as plain JSON."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from scalescope.results.ranks.attach_job import AttachPhase

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
