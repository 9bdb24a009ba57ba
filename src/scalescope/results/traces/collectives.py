"""Exchanges between ranks in a trace: which collective it was, of which process group, and how many bytes.

Newer versions of torch write all of that beside each NCCL kernel. Without it, the kernel's name or the
annotation that launched it tells the kind, and the group is unknown. What was recorded on gloo has names and
shapes alone.
"""

import bisect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.results.traces.intervals import Cover, Interval
from scalescope.results.traces.rank_trace import TraceEvent, item_bytes

UNKNOWN_GROUP = ""
_MOST_RANKS = 1 << 20
_LONGEST_NAME = 40
_LARGEST_COUNT = 1 << 60
# In this order: a kernel of a reduce-scatter is not one of a reduce.
_KINDS = (
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv|coalesced", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
)
# All ranks of the group take part from begin to end, so the last to come has the shortest time.
SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_WHOLE_ARRAY = {"all_gather": "Out msg nelems", "reduce_scatter": "In msg nelems"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as a trace names it."""

    name: str
    description: str = ""
    size: int | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective of one rank."""

    kind: str
    group: str  # its name; empty where it is not known
    step: int
    time_s: float  # from this rank's arrival to the end
    exposed_s: float  # of it, hidden behind no compute; what two exchanges share counts for the first
    size_bytes: float | None = None  # of the whole array
    splits: tuple[int, ...] | None = None  # elements for each rank, where they are told
    queued_s: float = 0.0  # it was launched, and another kind of exchange on its stream was not done
    beside_compute: bool = True  # its stream is not that of the kernels


def bus_factor(kind: str, ranks: int) -> float | None:
    """Bus bandwidth ÷ algorithm bandwidth; None where it is not defined."""
    if ranks < 2:
        return None
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "send_recv", "reduce") else None


def exchanges(
    sent: Sequence[TraceEvent],
    annotations: Sequence[TraceEvent],
    compute: Sequence[TraceEvent],
    host_steps: Sequence[Interval],
) -> list[Exchange]:
    """The exchanges that the host started in the steps, in the order of the program: ranks agree on that."""
    kinds = _KindsOfLaunches(annotations)
    covered = Cover(event.interval for event in compute)
    streams = {event.thread for event in compute}
    found: list[tuple[float, Exchange]] = []
    done_s = float("-inf")
    before: dict[object, tuple[str, str, float]] = {}  # by stream: the kind and group that ran last, its end
    for event in sorted(sent, key=lambda event: event.start_s):
        facts = event.facts or {}
        kind = _kind(str(facts.get("Collective name") or "")) or kinds.of(event)
        group = str(facts.get("Process Group Name", UNKNOWN_GROUP))[:_LONGEST_NAME]
        begin_s = max(event.start_s, done_s)
        exposed_s = max(0.0, event.end_s - begin_s) - covered.seconds(begin_s, event.end_s)
        done_s = max(done_s, event.end_s)
        last = before.get(event.thread)
        queued_s = 0.0
        if last is not None and last[:2] != (kind, group):
            queued_s = max(0.0, min(last[2], event.start_s) - event.started_s)
        before[event.thread] = (kind, group, event.end_s)
        step = bisect.bisect_right(host_steps, event.started_s, key=lambda each: each[0]) - 1
        if step < 0 or event.started_s >= host_steps[step][1]:
            continue
        exchange = Exchange(
            kind=kind,
            group=group,
            step=step,
            time_s=event.end_s - event.start_s,
            exposed_s=max(0.0, exposed_s),
            size_bytes=_size_bytes(kind, facts, event.size_bytes),
            splits=_numbers(facts.get("In split size")),
            queued_s=queued_s,
            beside_compute=event.thread not in streams,
        )
        found.append((event.started_s, exchange))
    return [exchange for _, exchange in sorted(found, key=lambda each: each[0])]


def groups_of(facts: Mapping[str, Any], sent: Iterable[TraceEvent]) -> dict[str, Group]:
    """The process groups that exchanges name, with their ranks from the kernels or from the job's facts."""
    told: dict[str, Group] = {}
    for event in sent:
        known = event.facts or {}
        name = str(known.get("Process Group Name", UNKNOWN_GROUP))[:_LONGEST_NAME]
        if not name or name in told:
            continue
        size = known.get("Group size")
        told[name] = Group(
            name=name,
            description=str(known.get("Process Group Description") or "")[:_LONGEST_NAME],
            size=size if isinstance(size, int) and 1 <= size <= _MOST_RANKS else None,
            ranks=_numbers(known.get("Process Group Ranks")),
        )
    job = facts.get("distributedInfo")
    configured = job.get("pg_config") if isinstance(job, dict) else None
    for entry in configured if isinstance(configured, list) else ():
        if not isinstance(entry, dict):
            continue
        name = str(entry.get("pg_name", ""))[:_LONGEST_NAME]
        if name in told:
            ranks = told[name].ranks or _numbers(entry.get("ranks"))
            size = told[name].size or (len(ranks) if ranks else None)
            described = told[name].description or str(entry.get("pg_desc") or "")[:_LONGEST_NAME]
            told[name] = Group(name=name, description=described, size=size, ranks=ranks)
    return told


def _kind(name: str) -> str:
    """The collective that a name speaks of; empty for none."""
    name = name.replace("AllReduce_Sum_", "AllReduce").partition("(")[0]
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "")


class _KindsOfLaunches:
    """Kinds of kernels whose own names do not tell: by the annotation around their launch."""

    def __init__(self, annotations: Sequence[TraceEvent]) -> None:
        self._by_thread: dict[object, list[TraceEvent]] = {}
        for event in annotations:
            if event.name.startswith("nccl:"):
                self._by_thread.setdefault(event.thread, []).append(event)

    def of(self, event: TraceEvent) -> str:
        """The kind; `other` where nothing tells."""
        kind = _kind(event.name)
        if kind and kind != "send_recv":
            return kind
        around = self._around(event)  # all-to-all is made of sends and receives
        return (_kind(around) if around else "") or kind or "other"

    def _around(self, event: TraceEvent) -> str:
        members = self._by_thread.get(event.launcher, [])
        index = bisect.bisect_right(members, event.started_s, key=lambda member: member.start_s) - 1
        inside = index >= 0 and members[index].end_s >= event.started_s
        return members[index].name if inside else ""


def _size_bytes(kind: str, facts: Mapping[str, Any], recorded: int | None) -> float | None:
    """Bytes of the whole array: what all ranks together gather or scatter."""
    count = facts.get(_WHOLE_ARRAY.get(kind, "In msg nelems"))
    item = item_bytes(str(facts.get("dtype", "")))
    if isinstance(count, int) and _is_count(count) and item is not None:
        return float(count * item)
    return None if recorded is None else float(recorded)


def _numbers(value: object) -> tuple[int, ...] | None:
    """A list of ranks or of counts, which traces write as text; None for none, or one that is cut off."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if len(value) < _MOST_RANKS else None
        except ValueError:
            return None
    if not isinstance(value, list) or not value or not all(map(_is_count, value)):
        return None
    return tuple(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _LARGEST_COUNT
