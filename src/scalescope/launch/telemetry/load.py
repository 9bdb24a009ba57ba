"""Load: how much of the machine other processes use, told by /proc; what it does not show is unknown."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.launch.telemetry.nvml import Nvml
from scalescope.results.other_load import OtherLoad

PROC = Path("/proc")
NOBODY = 0  # the root of no process: what is ours cannot be told, so neither can what is others'
_STAT_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_NOT_BUSY = ("idle", "iowait", "steal")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTicks:
    """Clock ticks of the cores that ranks may use, since the system started."""

    cores: int
    busy: int  # by any process of this system
    steal: int  # by other machines of the same host
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """All counters at one moment; None where the system does not show one."""

    at_s: float
    host: HostTicks | None
    own_ticks: int | None  # of our processes and everything they started
    waits: tuple[tuple[int, int] | None, ...]  # of each rank: nanoseconds it ran, and waited for a core
    pressure_us: int | None  # in which any process waited for a core
    load_average: float | None


class LoadMeter:
    """Reads the counters. `root` is the process under which all of ours are; by default this one."""

    def __init__(
        self, root: int | None = None, proc: Path = PROC, cpus: frozenset[int] | None = None
    ) -> None:
        self._root = os.getpid() if root is None else root
        self._proc = proc
        self._cpus = _usable() if cpus is None else cpus

    def read(self, at_s: float, ranks: Sequence[int] = ()) -> LoadReading:
        return LoadReading(
            at_s=at_s,
            host=host_ticks(self._proc / "stat", self._cpus),
            own_ticks=self._own_ticks(),
            waits=tuple(run_and_wait_ns(self._proc / str(pid)) for pid in ranks),
            pressure_us=pressure_us(self._proc / "pressure" / "cpu"),
            load_average=load_average(self._proc / "loadavg"),
        )

    def own_pids(self) -> frozenset[int]:
        """Our processes and everything they started."""
        return frozenset(process_tree(self._proc, self._root))

    def own_children(self) -> frozenset[int]:
        """What the root process started itself."""
        return frozenset(_children(self._proc / str(self._root)))

    def _own_ticks(self) -> int | None:
        """What ours have computed, those that ended included; None where children are not shown."""
        if not (self._proc / str(self._root) / "task" / str(self._root) / "children").exists():
            return None
        every = (
            process_ticks(self._proc / str(pid) / "stat", with_ended_children=True) for pid in self.own_pids()
        )
        return sum(ticks for ticks in every if ticks is not None)


def is_hidden() -> bool:
    """Whether launches do not look at what others use of the cores: tests run beside each other."""
    return os.environ.get("SCALESCOPE_HIDE_LOAD") == "1"


def load_at_start(meter: LoadMeter, since: LoadReading, uuids: Sequence[str]) -> OtherLoad:
    """What others have used since a reading, before any rank of ours runs; of GPUs what they use now."""
    load = load_between(since, meter.read(time.monotonic()))
    if not uuids:
        return load
    nvml = Nvml(uuids)
    try:
        using = [nvml.processes(uuid) for uuid in uuids]
        busy = [samples[-1][1] for uuid in uuids if (samples := nvml.history(uuid).get("utilization"))]
    finally:
        nvml.close()
    own_pids = meter.own_pids()
    others = None if None in using else sum(len(set(pids or ()) - own_pids) for pids in using)
    return dataclasses.replace(load, gpu_processes=others, gpu_utilization=max(busy, default=None))


def load_between(first: LoadReading, last: LoadReading) -> OtherLoad:
    """What others used between two readings."""
    span_s = last.at_s - first.at_s
    if span_s <= 0.0:
        return OtherLoad()
    load = OtherLoad(load_average=last.load_average)
    if first.host is not None and last.host is not None and last.host.total > first.host.total:
        # By the counters' own time: they are written once a tick, and a short span has few.
        per_tick = last.host.cores / (last.host.total - first.host.total)
        stolen = (last.host.steal - first.host.steal) * per_tick
        load = dataclasses.replace(load, cores=last.host.cores, stolen_cores=stolen)
        if first.own_ticks is not None and last.own_ticks is not None:
            others = last.host.busy - first.host.busy - (last.own_ticks - first.own_ticks)
            load = dataclasses.replace(load, other_cores=max(0.0, others * per_tick))
    waits = [_waited(start, end) for start, end in zip(first.waits, last.waits, strict=False)]
    shown = tuple(wait for wait in waits if wait is not None)
    if waits and len(shown) == len(waits):
        load = dataclasses.replace(load, rank_waits=shown)
    if first.pressure_us is not None and last.pressure_us is not None:
        load = dataclasses.replace(load, pressure=(last.pressure_us - first.pressure_us) / 1e6 / span_s)
    return load


def _waited(start: tuple[int, int] | None, end: tuple[int, int] | None) -> float | None:
    """Of the time in which a rank ran or wanted to, the share that it waited; 0 where it only slept."""
    if start is None or end is None:
        return None
    ran, waited = end[0] - start[0], end[1] - start[1]
    return max(0.0, waited / (ran + waited)) if ran + waited > 0 else 0.0


def host_ticks(path: Path, cpus: frozenset[int] | None = None) -> HostTicks | None:
    """Ticks of these CPUs, of the whole host where none are named; None where the system shows none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith("cpu")]
        by_name = {words[0]: dict(zip(_STAT_FIELDS, map(int, words[1:]), strict=False)) for words in lines}
    except (OSError, ValueError):
        return None
    names = ["cpu"] if cpus is None else [f"cpu{cpu}" for cpu in cpus]
    counted = [by_name[name] for name in names if name in by_name]
    if not counted:
        return None
    total = sum(sum(ticks.values()) for ticks in counted)
    steal = sum(ticks.get("steal", 0) for ticks in counted)
    not_busy = sum(ticks.get(name, 0) for ticks in counted for name in _NOT_BUSY)
    cores = len(counted) if cpus is not None else max(1, len(by_name) - 1)
    return HostTicks(cores=cores, busy=total - not_busy, steal=steal, total=total)


def process_ticks(path: Path, *, with_ended_children: bool = False) -> int | None:
    """Clock ticks that a process has computed, its threads included; None where it is gone."""
    try:
        after_name = path.read_text().rpartition(")")[2].split()
        last = 15 if with_ended_children else 13  # utime and stime, then cutime and cstime
        return sum(int(after_name[field]) for field in range(11, last))
    except (OSError, ValueError, IndexError):
        return None


def process_tree(proc: Path, root: int) -> Iterator[int]:
    """A process and all its descendants."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += _children(proc / str(pid))


def _children(process: Path) -> Iterator[int]:
    for thread in _threads(process):
        try:
            yield from map(int, (thread / "children").read_text().split())
        except (OSError, ValueError):
            continue  # it ended meanwhile


def _threads(process: Path) -> list[Path]:
    """The folders of a process's threads; none where it has ended."""
    try:
        return list((process / "task").iterdir())
    except OSError:
        return []


def run_and_wait_ns(process: Path) -> tuple[int, int] | None:
    """Nanoseconds in which the threads of a process ran, and in which they waited for a core."""
    ran = waited = 0
    counted = False
    for thread in _threads(process):
        try:
            words = (thread / "schedstat").read_text().split()
            ran, waited, counted = ran + int(words[0]), waited + int(words[1]), True
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
    return (ran, waited) if counted else None


def pressure_us(path: Path) -> int | None:
    """Microseconds in which at least one process waited for a core; None on systems without the file."""
    try:
        some = next(line for line in path.read_text().splitlines() if line.startswith("some"))
        return int(some.rpartition("total=")[2])
    except (OSError, ValueError, StopIteration):
        return None


def load_average(path: Path) -> float | None:
    """Processes that ran or wanted to, over the last minute."""
    try:
        return float(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _usable() -> frozenset[int] | None:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
