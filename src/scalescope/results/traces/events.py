"""Traces: where they lie, how they are read, and the names by which both sides know their events."""

import json
import re
from pathlib import Path
from typing import Any

from scalescope.results.stored.regular_files import LARGEST_TRACE_BYTES, read_bytes, unpacked

TRACES = "traces"
_LARGEST_US = 1e18
_LONGEST_NUMBER = 40
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
    content = read_bytes(path, LARGEST_TRACE_BYTES)
    try:
        raw = json.loads(unpacked(content) if path.suffix == ".gz" else content)
    except RecursionError:
        raise ValueError("not a Chrome trace: it is nested too deeply") from None
    events = raw.get("traceEvents") if isinstance(raw, dict) else raw
    if not isinstance(events, list):
        raise ValueError("not a Chrome trace: it has no list of events")
    complete = [
        event for event in events if isinstance(event, dict) and event.get("ph") == "X" and "dur" in event
    ]
    if not all(map(_has_types, complete)):
        raise ValueError("not a Chrome trace: an event has no time, or values of other types")
    return complete


def _has_types(event: dict[str, Any]) -> bool:
    """Whether an event has a time and a duration, and everything else the types that traces give it."""
    if not (_is_time(event.get("ts")) and _is_time(event["dur"])):
        return False
    arguments = event.get("args")
    thread_is_plain = isinstance(event.get("tid"), int | float | str | None)
    return thread_is_plain and (arguments is None or isinstance(arguments, dict))


def _is_time(value: object) -> bool:
    """A number or the text of one, in microseconds, that stays one when it is added to others."""
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, int | float) and -_LARGEST_US <= value <= _LARGEST_US
