"""Telemetry: what processors and GPUs do while ranks run, sampled from outside the ranks."""

import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.telemetry.infiniband import SYS, growth, read_counters
from scalescope.launch.telemetry.load import (
    PROC,
    LoadMeter,
    host_ticks,
    is_hidden,
    load_between,
    process_ticks,
)
from scalescope.launch.telemetry.nvml import Nvml, slowdowns
from scalescope.results.other_load import HEAT, OtherLoad
from scalescope.results.result import WINDOW, RankRecord

# Reading /proc is cheap and harmless. Reading a GPU may delay whoever launches kernels on it, so it is
# done seldom: utilisation and power are read from what the driver records anyway.
_INTERVAL_S = 0.2
_GPU_INTERVAL_S = 1.0
_HISTORY_INTERVAL_S = 5.0
_UTILIZATION_SPAN_S = 0.2  # what one of the driver's samples is an average over
_MOST_SAMPLES = 2_000  # a day's training must not fill the memory: every second sample is dropped then
_LOAD_INTERVAL_S = 0.5  # of counters of every thread
_PROCESSES_INTERVAL_S = 2.0
_FEWEST_CLOCKS = 3  # readings that tell whether a clock fell
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Telemetry:
    """Samples at intervals, and keeps each sample with its time; a window is cut out at the end."""

    def __init__(
        self,
        uuids: Sequence[str],
        pids: Callable[[], Sequence[int]] = tuple,
        proc: Path = PROC,
        meter: LoadMeter | None = None,
        *,
        shows_processes: bool = True,  # False where processes of a daemon stand for ours
        sys: Path = SYS,
    ) -> None:
        self._uuids = tuple(uuids)
        self._pids = pids
        self._proc = proc
        self._meter = meter or LoadMeter(proc=proc)
        self._shows_processes = shows_processes
        self._load = _TimedReadings(_LOAD_INTERVAL_S)
        self._gpu_processes = _TimedReadings(_PROCESSES_INTERVAL_S)
        self._nvml = Nvml(self._uuids)
        self._cpu = _TimedReadings(_INTERVAL_S)
        self._gpu = _TimedReadings(_GPU_INTERVAL_S)
        self._history: dict[str, dict[str, _Samples]] = {}
        self._history_read_s = time.monotonic()
        self._sys = sys
        self._errors_before = read_counters(sys)
        self._asking: list[tuple[float, float]] = []  # when GPUs were asked, and for how long

    def sample(self) -> None:
        """Take those samples whose last one was long enough ago."""
        now = time.monotonic()
        if self._cpu.is_due(now):
            ranks = [process_ticks(self._proc / str(pid) / "stat") for pid in self._pids()]
            self._cpu.add(now, {"host": host_ticks(self._proc / "stat"), "ranks": ranks})
        if self._load.is_due(now):
            self._load.add(now, self._meter.read(now, self._pids()))
        if self._uuids and self._gpu.is_due(now):
            self._ask()

    def _ask(self) -> None:
        now = time.monotonic()
        self._gpu.add(now, {uuid: self._nvml.read(uuid) for uuid in self._uuids})
        if self._gpu_processes.is_due(now):
            self._gpu_processes.add(now, self._other_processes())
        if now - self._history_read_s >= _HISTORY_INTERVAL_S:
            self._read_history()
        self._asking.append((now, time.monotonic() - now))

    def _other_processes(self) -> int | None:
        """Processes of others on these GPUs; None where the driver does not show even ours."""
        if not self._shows_processes:
            return None
        using = [self._nvml.processes(uuid) for uuid in self._uuids]
        own_pids = self._meter.own_pids()
        if any(pids is None or not own_pids & set(pids) for pids in using):
            return None  # in a container the driver may show other ids than ours, or none
        return sum(len(set(pids or ()) - own_pids) for pids in using)

    def _read_history(self) -> None:
        self._history_read_s = time.monotonic()
        for uuid in self._uuids:
            for name, samples in self._nvml.history(uuid).items():
                self._history.setdefault(uuid, {}).setdefault(name, _Samples()).add(samples)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample from a thread, for callers that wait for an answer meanwhile."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_INTERVAL_S):
                self.sample()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def between(self, begin_s: float, end_s: float) -> dict[str, Any]:
        """Raw samples of a window; what could not be sampled is missing, with the reason."""
        inside = self._cpu.between(begin_s, end_s)
        summary: dict[str, Any] = {"samples": len(inside), "interval_s": self._cpu.interval_s}
        if self._nvml.problem is not None:
            summary["gpu_problem"] = self._nvml.problem
        if self._uuids:
            self._read_history()
            # The state just before the window is its state too: memory is taken, clocks are up.
            states = self._gpu.between(begin_s - self._gpu.interval_s, end_s)
            gpus = {uuid: self._gpu_summary(uuid, states, begin_s, end_s) for uuid in self._uuids}
            summary["gpus"] = {uuid: gpu for uuid, gpu in gpus.items() if gpu}
            summary["asking_gpus_s"] = sum(
                took_s for at_s, took_s in self._asking if begin_s <= at_s <= end_s
            )
        load = self._other_load(begin_s, end_s, summary.get("gpus", {})).to_json()
        return summary | {"cpu": _cpu(inside)} | ({"load": load} if load else {})

    def _other_load(self, begin_s: float, end_s: float, gpus: dict[str, dict[str, Any]]) -> OtherLoad:
        """What others used in a window, by the readings inside it, or by those around a short one."""
        readings = self._load.between(begin_s, end_s)
        if len(readings) < 2:
            readings = self._load.around(begin_s, end_s)
        load = load_between(readings[0][1], readings[-1][1]) if len(readings) > 1 else OtherLoad()
        if is_hidden():
            load = dataclasses.replace(load, other_cores=None, stolen_cores=None, rank_waits=None)
        if not gpus:
            return load
        states = self._gpu_processes.between(begin_s - self._gpu_processes.interval_s, end_s)
        counts = [count for _, count in states if count is not None]
        inside = [state for _, state in self._gpu.between(begin_s, end_s)]
        return dataclasses.replace(
            load,
            gpu_processes=max(counts, default=None),
            gpu_slowed=_slowed(gpus.values()),
            gpu_clock_share=_lowest_clock_share(inside, self._uuids),
        )

    def of_window(self, records: Sequence[RankRecord]) -> dict[str, Any]:
        """What was sampled while ranks measured, by the first rank's clock; empty where that is unknown.

        Errors of the network are those of the whole launch: joining uses it too.
        """
        errors = growth(self._errors_before, read_counters(self._sys))
        return self._in_window(records) | ({"infiniband": errors} if errors else {})

    def _in_window(self, records: Sequence[RankRecord]) -> dict[str, Any]:
        now = time.monotonic()
        self._load.add(now, self._meter.read(now, self._pids()))  # the end of a window too short for two
        marks = [records[0].counters.get(name) for name in WINDOW] if records else []
        began, ended = (mark if isinstance(mark, float) else None for mark in marks or (None, None))
        if began is not None and ended is not None:
            return self.between(began, ended)
        load = self._other_load(-math.inf, math.inf, {}).to_json() if records else {}
        return {"load": load} if load else {}  # benchmarks without such a window still have neighbours

    def _gpu_summary(
        self, uuid: str, states: list[tuple[float, dict[str, Any]]], begin_s: float, end_s: float
    ) -> dict[str, Any]:
        readings = [state[uuid] for _, state in states]
        names = dict.fromkeys(name for reading in readings for name in reading)
        series = {name: [reading[name] for reading in readings if name in reading] for name in names}
        offset_s = time.monotonic() - time.time()  # the driver writes wall time
        for name, samples in self._history.get(uuid, {}).items():
            span_s = _UTILIZATION_SPAN_S if name == "utilization" else 0.0
            inside = [value for at_s, value in samples.all() if begin_s + span_s <= at_s + offset_s <= end_s]
            series |= {name: inside} if inside else {}
        masks = series.pop("throttle_mask", None)
        summary: dict[str, Any] = dict(series)
        if masks is not None:
            summary["slowdowns"] = _shares([slowdowns(mask) for mask in masks])
        return summary | self._nvml.limits(uuid) if summary else {}

    def close(self) -> None:
        self._nvml.close()


class _Samples:
    """Samples with their times, thinned out evenly: a mean must not favour the last minute."""

    def __init__(self) -> None:
        self._spacing_s = 0.001
        self._by_slot: dict[int, tuple[float, float]] = {}

    def add(self, samples: Iterable[tuple[float, float]]) -> None:
        for at_s, value in samples:
            self._by_slot.setdefault(int(at_s / self._spacing_s), (at_s, value))
        while len(self._by_slot) > _MOST_SAMPLES:
            self._spacing_s *= 2
            kept, self._by_slot = self.all(), {}
            for at_s, value in kept:
                self._by_slot.setdefault(int(at_s / self._spacing_s), (at_s, value))

    def all(self) -> list[tuple[float, float]]:
        return sorted(self._by_slot.values())


class _TimedReadings:
    """Readings with their times, taken at an interval that grows when there are many."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._taken: list[tuple[float, Any]] = []

    def is_due(self, now_s: float) -> bool:
        return not self._taken or now_s - self._taken[-1][0] >= self.interval_s

    def add(self, now_s: float, reading: Any) -> None:
        self._taken.append((now_s, reading))
        if len(self._taken) > _MOST_SAMPLES:
            self._taken = self._taken[::2]
            self.interval_s *= 2

    def between(self, begin_s: float, end_s: float) -> list[tuple[float, Any]]:
        return [sample for sample in self._taken if begin_s <= sample[0] <= end_s]

    def around(self, begin_s: float, end_s: float) -> list[tuple[float, Any]]:
        """The last reading before, those between, and the first one after."""
        before = [sample for sample in self._taken if sample[0] < begin_s]
        after = [sample for sample in self._taken if sample[0] > end_s]
        return [*before[-1:], *self.between(begin_s, end_s), *after[:1]]


def gpus_of(trial: Trial, machine: Machine, ranks: int | None = None) -> list[str]:
    """The ids of the GPUs that a trial's ranks use on this host; `ranks` are those here, else all."""
    if trial.device != "cuda" or not machine.gpus:
        return []
    here = trial.world_size if ranks is None else ranks
    used = 1 if trial.split_gpu else min(here, len(machine.gpus))
    return [gpu.uuid for gpu in machine.gpus[:used]]


def _shares(named: list[list[str]]) -> dict[str, float]:
    """In what share of the samples each name appeared."""
    names = dict.fromkeys(name for present in named for name in present)
    return {name: sum(name in present for present in named) / len(named) for name in names}


def _slowed(gpus: Iterable[dict[str, Any]]) -> float | None:
    """In what share of the readings heat or its power supply held a GPU back, at the worst of them."""
    shares = [
        max((share for name, share in gpu["slowdowns"].items() if name in HEAT), default=0.0)
        for gpu in gpus
        if "slowdowns" in gpu
    ]
    return max(shares, default=None)


def _lowest_clock_share(states: Sequence[dict[str, dict[str, float]]], uuids: Sequence[str]) -> float | None:
    """The lowest over the highest clock in the window, of the GPU that changed most."""
    clocks = [
        [state[uuid]["sm_clock_hz"] for state in states if "sm_clock_hz" in state[uuid]] for uuid in uuids
    ]
    shares = [min(series) / max(series) for series in clocks if len(series) >= _FEWEST_CLOCKS]
    return min(shares, default=None)


def _cpu(samples: list[tuple[float, Any]]) -> dict[str, Any]:
    """Busy share and cores of the host, and those of each rank; missing where unknown."""
    if len(samples) < 2:
        return {}
    (began_s, first), (ended_s, last) = samples[0], samples[-1]
    span_s = ended_s - began_s
    summary: dict[str, Any] = {}
    if first["host"] and last["host"]:
        total = last["host"].total - first["host"].total
        if total > 0:
            busy = last["host"].busy - first["host"].busy
            summary["host_utilization"] = busy / total
            summary["host_busy_cores"] = busy / _TICKS_PER_S / span_s
    pairs = list(zip(first["ranks"], last["ranks"], strict=False))
    if pairs and all(start is not None and end is not None for start, end in pairs):
        summary["rank_busy_cores"] = [(end - start) / _TICKS_PER_S / span_s for start, end in pairs]
    return summary
