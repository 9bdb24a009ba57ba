"""Telemetry: what processors and GPUs do while ranks run, looked at from beside them."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.nvml import Nvml, slowdowns
from scalescope.results.result import WINDOW, RankRecord

# NVML averages over a sixth of a second at least, so looking more often tells nothing new.
_INTERVAL_S = 0.2
_MOST_LOOKS = 2_000  # a day's training must not fill the memory: every second look is dropped then
_SPARED = ("idle", "iowait")
_STAT_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Telemetry:
    """Looks now and then, and keeps each look with its time; a window is cut out at the end."""

    def __init__(
        self,
        uuids: Sequence[str],
        pids: Callable[[], Sequence[int]] = tuple,
        proc: Path = Path("/proc"),
    ) -> None:
        self._uuids = tuple(uuids)
        self._pids = pids
        self._proc = proc
        self._nvml = Nvml(self._uuids)
        self._looks: list[dict[str, Any]] = []
        self._interval_s = _INTERVAL_S

    def look(self) -> None:
        """Take a look, unless the last one was a moment ago."""
        now = time.monotonic()
        if self._looks and now - self._looks[-1]["at_s"] < self._interval_s:
            return
        self._looks.append(
            {
                "at_s": now,
                "gpus": {uuid: self._nvml.read(uuid) for uuid in self._uuids},
                "host": host_ticks(self._proc / "stat"),
                "ranks": [process_ticks(self._proc / str(pid) / "stat") for pid in self._pids()],
            }
        )
        if len(self._looks) > _MOST_LOOKS:
            self._looks = self._looks[::2]
            self._interval_s *= 2

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look from a thread, for those who wait for an answer meanwhile."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(self._interval_s):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def between(self, begin_s: float, end_s: float) -> dict[str, Any]:
        """What was seen in a window, as raw samples; what could not be seen is missing, with the reason."""
        inside = [one for one in self._looks if begin_s <= one["at_s"] <= end_s]
        found: dict[str, Any] = {"looks": len(inside), "interval_s": self._interval_s}
        if self._nvml.problem is not None:
            found["gpu_problem"] = self._nvml.problem
        if not inside:
            return found
        gpus = {uuid: self._gpu(uuid, inside) for uuid in self._uuids}
        return found | {
            "gpus": {uuid: seen for uuid, seen in gpus.items() if seen},
            "cpu": _cpu(inside),
        }

    def of_window(self, records: Sequence[RankRecord]) -> dict[str, Any]:
        """What was seen while ranks measured, by the first one's clock; nothing where none says when."""
        marks = [records[0].counters.get(name) for name in WINDOW] if records else []
        began, ended = (mark if isinstance(mark, float) else None for mark in marks or (None, None))
        return {} if began is None or ended is None else self.between(began, ended)

    def _gpu(self, uuid: str, looks: list[dict[str, Any]]) -> dict[str, Any]:
        readings = [one["gpus"][uuid] for one in looks]
        names = dict.fromkeys(name for reading in readings for name in reading)
        series = {name: [one[name] for one in readings if name in one] for name in names}
        masks = series.pop("throttle_mask", None)
        found: dict[str, Any] = dict(series)
        if masks is not None:
            found["slowdowns"] = _shares([slowdowns(mask) for mask in masks])
        return found | self._nvml.limits(uuid) if found else {}

    def close(self) -> None:
        self._nvml.close()


def gpus_of(trial: Trial, machine: Machine) -> list[str]:
    """The ids of the GPUs that a trial's ranks use on this host."""
    if trial.device != "cuda" or not machine.gpus:
        return []
    used = 1 if trial.settings["split_gpu"] else min(trial.world_size, len(machine.gpus))
    return [gpu.uuid for gpu in machine.gpus[:used]]


def _shares(named: list[list[str]]) -> dict[str, float]:
    """In what share of the looks each name appeared."""
    names = dict.fromkeys(name for one in named for name in one)
    return {name: sum(name in one for one in named) / len(named) for name in names}


def _cpu(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """Busy share of the host and busy cores of each rank, over the whole window; missing where unknown."""
    first, last = looks[0], looks[-1]
    span_s = last["at_s"] - first["at_s"]
    if span_s <= 0.0:
        return {}
    found: dict[str, Any] = {}
    if first["host"] and last["host"]:
        busy, total = (end - start for start, end in zip(first["host"], last["host"], strict=True))
        if total > 0:
            found["host_utilization"] = busy / total
    pairs = list(zip(first["ranks"], last["ranks"], strict=False))
    if pairs and all(start is not None and end is not None for start, end in pairs):
        found["rank_busy_cores"] = [(end - start) / _TICKS_PER_S / span_s for start, end in pairs]
    return found


def host_ticks(path: Path) -> tuple[int, int] | None:
    """(busy, all) clock ticks of all cores since the start; None where the system does not say."""
    try:
        words = path.read_text().splitlines()[0].split()
        ticks = dict(zip(_STAT_FIELDS, map(int, words[1:]), strict=False))
    except (OSError, ValueError, IndexError):
        return None
    total = sum(ticks.values())
    return total - sum(ticks.get(name, 0) for name in _SPARED), total


def process_ticks(path: Path) -> int | None:
    """Clock ticks that a process has computed, its threads included; None where it is gone."""
    try:
        after_name = path.read_text().rpartition(")")[2].split()
        return int(after_name[11]) + int(after_name[12])  # utime and stime, fields 14 and 15
    except (OSError, ValueError, IndexError):
        return None
