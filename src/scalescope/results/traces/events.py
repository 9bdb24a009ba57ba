"""Traces: where they lie, how they are read, and the names by which both sides know their events."""

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

TRACES = "traces"
PREFIX = "scalescope."
INPUT, FORWARD, BACKWARD, OPTIMIZER, CLEAR = (
    f"{PREFIX}{name}" for name in ("input", "forward", "backward", "optimizer", "clear")
)
WHOLE_STEP = f"{PREFIX}whole_step"  # a user's own step, in place of its parts
STEP = "ProfilerStep#"  # and the number of a step: the mark by which HTA and TensorBoard know steps
COMPUTE = f"{PREFIX}compute"  # compute that is not an operation of torch: a paced model's sleep
_COMMUNICATION = re.compile(r"^gloo:|nccl", re.IGNORECASE)
_ROOTED = re.compile(r"broadcast|send|recv|^(gather|scatter|reduce)$|Kernel_Reduce_", re.IGNORECASE)


def is_communication(name: str) -> bool:
    """Whether an event's name is that of a transfer between ranks."""
    return _COMMUNICATION.search(name) is not None


def is_transfer(name: str) -> bool:
    """Whether an event on the host is a transfer itself; NCCL's there only mark that a kernel was started."""
    return name.lower().startswith("gloo:")


def is_rooted(name: str) -> bool:
    """Whether ranks take part in a transfer for different times: a root leaves early, a sender before its
    receiver."""
    return _ROOTED.search(name) is not None


def trace_name(trial_id: str, launch: int, rank: int) -> str:
    """The name of a rank's trace inside a run folder; TensorBoard looks for files with this ending."""
    return f"{TRACES}/{trial_id}-{launch}-{rank}.pt.trace.json.gz"


def read_events(path: Path) -> list[dict[str, Any]]:
    """The complete events of a Chrome trace; ValueError if the file is not one."""
    content = path.read_bytes()
    try:
        raw = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"the file is damaged: {error}") from None
    events = raw.get("traceEvents") if isinstance(raw, dict) else raw
    if not isinstance(events, list):
        raise ValueError("not a Chrome trace: it has no list of events")
    return [
        event for event in events if isinstance(event, dict) and event.get("ph") == "X" and "dur" in event
    ]
