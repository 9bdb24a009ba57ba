"""The life of a measured script: look at it, warm up, agree on a window, time or record its steps, write the
record."""

import json
import os
import statistics
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from scalescope import clocks
from scalescope.catalog.benchmarks.train import Train
from scalescope.errors import BadInput
from scalescope.experiment.ablations import NO_COMM, PRELOADED, has_ablation
from scalescope.experiment.trial import ABLATIONS, Trial
from scalescope.results.files import write_atomically
from scalescope.results.provenance import SCRIPT_FILES, local_files
from scalescope.results.ranks.attach_job import AGAIN, OWN_START, AttachJob
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.result import WINDOW
from scalescope.worker.attach.loaders import PRELOADED_BATCHES
from scalescope.worker.attach.rank_group import ScriptRanks
from scalescope.worker.attach.recording.phases import StepPhases
from scalescope.worker.attach.recording.recorded_steps import (
    Recorded,
    ScriptRecording,
    is_recorded,
    warmup_steps,
)
from scalescope.worker.machine.gpu_state import sm_clock_hz
from scalescope.worker.machine.timing import Clock, clock_for
from scalescope.worker.process.device import describe_placement, device_name, placement_counters
from scalescope.worker.process.node import node_name
from scalescope.worker.process.position import Position
from scalescope.worker.process.rank import describe_error
from scalescope.worker.trace.profiled_steps import profiled_count
from scalescope.worker.trace.recorder import LONGEST_PAUSE_S
from scalescope.worker.training.activity.allocator import AllocatorWatch
from scalescope.worker.training.activity.compilation import CompilationWatch
from scalescope.worker.training.activity.garbage import GarbageWatch
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import ranges_on
from scalescope.worker.training.warmup import extra_steps, steps_in_window, typical_step_s

Tick = Callable[[], None]
Counters = Callable[[int], dict[str, Any]]  # what a number of steps consisted of, and tables under "tables"
_LOOKING_STEPS = 2  # until the modules that the script calls are known
_PUBLISH_S = 0.05  # of steps between two signs of life in the window
# Steps of a phase before it counts: batches are kept first, and hooks look where gradients are.
_SETTLING = {PRELOADED: PRELOADED_BATCHES + 1, NO_COMM: 4}
_AGAIN = -1  # in place of a phase's number: the script as it is
_AGAIN_S = 0.5
_LONGEST_S = 2.0  # of a phase: the same processes differ less from each other than launches do
_OVER = object()
_AFTER_PROFILER = "steps that follow on recorded ones are slower on a GPU"
_OF_THE_SCRIPT = (
    "observed/", "parameter", "gradient_bytes", "convolutions", "threads", "affinity", "gpu", "world_size"
)  # fmt: skip
_ALIVE_S = 1.0  # between two looks at whether the launcher is there


class MeasuredScript(Protocol):
    """What a measurement asks of the script's side."""

    def look(self, step: int) -> None:
        """A first step has ended: modules become known, levers that need them are applied."""

    def end_warmup_step(self) -> None:
        """A step of the warm-up has ended."""

    def begin_profile(self, device: torch.device) -> None:
        """What follows of the warm-up is profiled."""

    def begin_window(self, tick: Tick) -> Counters:
        """The window begins, each of whose steps ends with `tick`; returns what gives its counters then."""
        ...

    def begin_recording(self, device: torch.device) -> tuple[StepPhases, Counters]:
        """Steps are recorded from now on; returns the names of their parts, and what gives their counters."""
        ...

    def why_not_here(self, trial: Trial) -> str | None:
        """Why a trial cannot be measured in this process after the window; None where it can, empty where
        nobody can measure it."""
        ...

    def uses_loader(self) -> bool:
        """Whether batches come from a DataLoader."""
        ...

    def begin_explaining(self) -> None:
        """The window is over and stored; other trials follow in the same process."""

    def ablated(self, trial: Trial) -> AbstractContextManager[None]:
        """Inside, what the trial removes is removed from the script."""
        ...

    def recording(self, device: torch.device) -> AbstractContextManager[StepPhases]:
        """Inside, steps are recorded by the names of their parts."""
        ...

    def explaining_counters(self, steps: int) -> dict[str, Any]:
        """What is counted of ranks without communication, and tables under "tables"."""
        ...

    def finished(self) -> None:
        """The record is written."""

    def fail(self, error: Exception) -> None:
        """Something of ours went wrong."""


class ScriptMeasuring:
    """One rank's measurement; `tick` is called at the end of every step of the script."""

    def __init__(self, job: AttachJob, device: torch.device, script: MeasuredScript) -> None:
        self._job = job
        self._trial = Trial(settings=job.settings)
        self._options = self._trial.options(Train)
        self._device = device
        self._script = script
        self.ranks = ScriptRanks.current(is_patient=not self._trial.keeps_running)
        self._check_ranks()
        in_range = self.ranks.rank < job.world_size == self.ranks.world_size
        heartbeats = Path(job.heartbeat_file)
        beats = heartbeats if in_range and heartbeats.exists() else None
        self.position = Position(beats, self.ranks.rank, job.world_size)
        self._record: dict[str, Any] = {
            "rank": self.ranks.rank,
            "world_size": self.ranks.world_size,
            "host": node_name(),
            "pid": os.getpid(),
            "state": "running",
            "device": str(device),
            "device_name": device_name(device),
            "placement": describe_placement(
                self.ranks.rank, int(os.environ.get("LOCAL_RANK", self.ranks.rank)), device, []
            ),
        }
        self._identity = {name: value for name, value in self._record.items() if name != "state"}
        self._files = local_files(sys.modules) if self.ranks.rank == 0 else {}
        self._write()
        self.position.enter(RankStage.WARMUP)
        self._ticks = 0
        self._clock: Clock | None = None
        self._planned = 0
        self._profiled = 0  # of the warm-up, the last
        self._warmup_times_s: list[float] = []
        self._checked_parent = clocks.monotonic()
        self._has_window = False
        self._compilation = CompilationWatch()
        self.is_over = False
        self.tick = self._looking
        self._check_world_size()

    def _check_ranks(self) -> None:
        if not self.ranks.are_joined:
            raise BadInput(
                f"the script's {self.ranks.world_size} ranks never joined a process group, so nothing makes "
                "them train together"
            )

    def _check_world_size(self) -> None:
        asked, ran = self._job.world_size, self.ranks.world_size
        if asked != ran:
            error = BadInput(
                f"the command ran {ran} rank{'s' if ran > 1 else ''}, {asked} "
                f"{'were' if asked > 1 else 'was'} asked for; put {{world_size}} where its launcher takes "
                "the number"
            )
            self.fail(error)
            raise error

    @property
    def in_window(self) -> bool:
        return self._planned > 0 and not self.is_over

    def _looking(self) -> None:
        """The first steps: modules become known, levers that need them are applied."""
        self._ticks += 1
        self.position.begin_step()
        self._script.look(self._ticks)
        if self._ticks == _LOOKING_STEPS:
            self._ticks = 0
            self._least = warmup_steps(self._trial, self._device)
            self._clock = clock_for(self._device, self._least)
            self._clock.start()
            self.tick = self._warming

    def restart(self) -> None:
        """The script's step turned out to be another one: warm up again."""
        if self.tick != self._looking and not self.is_over:
            self._ticks = _LOOKING_STEPS - 1
            self.tick = self._looking

    def _warming(self) -> None:
        assert self._clock is not None
        self._ticks += 1
        self.position.completed = self._clock.tick()
        self.position.begin_step()
        self._check_parent()
        self._script.end_warmup_step()
        if self._ticks < self._least:
            return
        self._clock.finish()
        self._warmup_times_s += self._clock.step_times_s()
        step_s = max(typical_step_s(self._warmup_times_s), 1e-9)
        if is_recorded(self._trial):
            self._begin_recording(step_s)
            return
        extra, steps = json.loads(self.ranks.agree("window", json.dumps(self._window(step_s))))
        self._planned = steps
        # A command that keeps running gets no hooks in its backward pass.
        self._profiled = 0 if self._trial.keeps_running else profiled_count(self._trial, step_s, steps)
        extra = max(extra, self._profiled)
        self.position.plan(self.position.begun + extra + steps)
        self.position.enter(RankStage.STEADY, slowest_warmup_s=max(self._warmup_times_s))
        if extra:
            self._ticks, self._least = 0, extra
            self._completed_before = self.position.completed
            self._clock = clock_for(self._device, extra)
            self._clock.start()
            self.tick = self._extending
            self._profile_last()
        else:
            self._begin_window()

    def _window(self, step_s: float) -> tuple[int, int]:
        """How many steps to warm up further, and how many to measure; rank 0 decides for all."""
        extra = 0
        if self._device.type == "cuda" and self._options.steps_per_epoch == "auto":
            extra = extra_steps(step_s, len(self._warmup_times_s))
        return extra, steps_in_window(self._options.window or 1.5, step_s, self._options.min_steps)

    def _extending(self) -> None:
        assert self._clock is not None
        self._ticks += 1
        self.position.completed = self._completed_before + self._clock.tick()
        self.position.begin_step()
        self._script.end_warmup_step()
        self._profile_last()
        if self._ticks == self._least:
            self._clock.finish()
            self._warmup_times_s += self._clock.step_times_s()
            self._begin_window()

    def _profile_last(self) -> None:
        """Profile the last steps of the warm-up; hooks stay out of the window."""
        if 0 < self._profiled == self._least - self._ticks:
            self._script.begin_profile(self._device)

    def _begin_window(self) -> None:
        """All ranks begin together; nothing is exchanged after that."""
        self._clock_before = sm_clock_hz(self._device)
        self._watches = (
            AllocatorWatch(self._device),
            self._compilation,
            GarbageWatch(self.position),
        )
        self.ranks.meet("ready")
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        for watch in self._watches:
            watch.begin()
        self._clock = clock_for(self._device, self._planned)
        self._ticks = 0
        self._has_window = True
        self.tick = self._window_tick(self._clock)
        self._finish_counters = self._script.begin_window(self.tick)
        self._began = clocks.monotonic()
        self._clock.start()

    def _window_tick(self, clock: Clock) -> Tick:
        """The shortest way through a step of the window; signs of life are published now and then."""
        record, now = clock.record, clocks.perf_counter_ns
        every = max(1, int(_PUBLISH_S / max(typical_step_s(self._warmup_times_s), 1e-9)))
        before, ticks, pause = self.position.completed, 0, min(every, self._planned)

        def tick() -> None:
            nonlocal ticks
            record(now())
            ticks += 1
            if ticks == pause:
                publish()

        def publish() -> None:
            nonlocal pause
            self.position.completed = before + clock.finished()
            self.position.begin_step(ticks - self._ticks)
            self._ticks = ticks
            if ticks == self._planned:
                self.finish()
            pause = min(ticks + every, self._planned)

        return tick

    def finish(self) -> None:
        """Write the record of the window, which may have ended early with the script."""
        assert self._clock is not None
        self._clock.finish()
        ended = clocks.monotonic()
        for watch in reversed(self._watches):
            watch.end()
        times_s = self._clock.step_times_s()
        counters: dict[str, Any] = {
            **placement_counters(self._device),
            **dict(zip(WINDOW, (self._began, ended), strict=True)),
            "measured_steps": len(times_s),
            "world_size": self.ranks.world_size,
            **self._finish_counters(len(times_s)),
        }
        tables: dict[str, Any] = {**counters.pop("tables", {}), **self._compilation.tables()}
        for watch in self._watches:
            counters |= watch.counters()
        if self._device.type == "cuda":
            counters["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        if self._clock_before is not None:
            counters |= {
                "sm_clock_hz_before": self._clock_before,
                "sm_clock_hz_after": sm_clock_hz(self._device),
            }
        samples = {"step_time_s": times_s, "warmup_step_time_s": self._warmup_times_s}
        self._finish_record(samples, counters, tables)
        if self._goes_on:
            self._begin_explaining(times_s)
        else:
            self._close()

    def _begin_recording(self, step_s: float) -> None:
        """All ranks begin together and record as many steps."""
        agreed_s = float(self.ranks.agree("window", repr(step_s)))
        phases, self._finish_counters = self._script.begin_recording(self._device)
        recording = ScriptRecording(
            trial=self._trial, device=self._device, ranks=self.ranks, phases=phases, step_s=agreed_s
        )
        recording.check()
        self._planned = recording.steps
        self.position.plan(self.position.begun + self._planned)
        self.position.enter(RankStage.STEADY, slowest_warmup_s=LONGEST_PAUSE_S)
        self.ranks.meet("ready")
        self._ticks = 0
        self._recorded: Recorded = recording.run()
        self.tick = self._recording
        next(self._recorded)

    def _recording(self) -> None:
        self._ticks += 1
        self.position.completed += 1
        self.position.begin_step()
        self._check_parent()
        try:
            next(self._recorded)
        except StopIteration as end:
            self._finish_recording(end.value)

    def _finish_recording(self, measurements: Measurements) -> None:
        """Write the record of recorded steps, which no figure of speed is made of."""
        counters: dict[str, Any] = {
            **placement_counters(self._device),
            "world_size": self.ranks.world_size,
            **self._finish_counters(self._ticks),
            **measurements.counters,
        }
        tables = {**counters.pop("tables", {}), **measurements.tables}
        self._finish_record(measurements.samples, counters, tables)
        self._close()

    def _finish_record(
        self, samples: dict[str, list[float]], counters: dict[str, Any], tables: dict[str, Any]
    ) -> None:
        if self._files:  # those that were edited since were loaded as they were
            self._files = local_files(sys.modules) | self._files
            tables[SCRIPT_FILES] = [{"path": path, "sha256": self._files[path]} for path in self._files]
        self._goes_on = bool(self._job.phases) and len(samples.get("step_time_s", ())) == self._planned
        self._record.update(state="done", samples=samples, counters=counters, tables=tables)
        self._record["continues"] = self._goes_on
        self._write()
        self.is_over = True

    def _close(self) -> None:
        """Everything is stored."""
        self._record["continues"] = False
        self._write()
        self.position.enter(RankStage.TEARDOWN)
        self._script.finished()

    # What follows on the window in the same process.

    def _begin_explaining(self, times_s: list[float]) -> None:
        """Rank 0 says what follows, for all ranks."""
        self._step_s = statistics.median(times_s)
        self._script.begin_explaining()
        agreed = self.ranks.agree("phases", json.dumps((*self._chosen(), self._step_s)))
        chosen, reasons, self._step_s = json.loads(
            agreed
        )  # as many recorded steps follow from it on all ranks
        self._record["counters"] |= {f"{OWN_START}{name}": reason for name, reason in reasons.items()}
        if not chosen:
            self._close()
            return
        self.position.plan(self.position.begun + sum(steps for _, steps in chosen))
        longest_s = max(LONGEST_PAUSE_S, *self._warmup_times_s)
        self.position.enter(RankStage.STEADY, slowest_warmup_s=longest_s)
        self._explaining = self._explanations(chosen)
        self.tick = self._explain
        self._explain_on()

    def _explain(self) -> None:
        self.position.completed += 1
        self.position.begin_step()
        self._check_parent()
        self._explain_on()

    def _explain_on(self) -> None:
        if next(self._explaining, _OVER) is _OVER:
            self._close()

    def _chosen(self) -> tuple[list[tuple[int, int]], dict[str, str]]:
        """The phases that this script allows, with their steps; and why others need a start of their own."""
        chosen: list[tuple[int, int]] = []
        reasons: dict[str, str] = {}
        has_loader = self._script.uses_loader()
        for number, phase in enumerate(self._job.phases):
            trial = Trial(settings=phase.settings)
            if phase.needs_loader not in (None, has_loader):
                continue
            reason = self._script.why_not_here(trial)
            if reason is None and has_ablation(trial, NO_COMM) and self._has_recorded(chosen):
                reason = _AFTER_PROFILER
            if reason is None:
                chosen.append((number, self._steps_of(trial)))
            elif reason:
                reasons[_name_of(trial)] = reason
        removed = sum(self._can_be_taken_back(number) for number, _ in chosen)
        if removed:  # once more as it is
            chosen.insert(removed, (_AGAIN, _settling(self._trial) + self._window_steps(_AGAIN_S)))
        return chosen, reasons

    def _has_recorded(self, chosen: list[tuple[int, int]]) -> bool:
        """Whether steps are recorded before, on a GPU: its profiler slows the host from then on."""
        recorded = (is_recorded(self._trial_of(number)) for number, _ in chosen)
        return self._device.type == "cuda" and any(recorded)

    def _can_be_taken_back(self, number: int) -> bool:
        trial = self._trial_of(number)
        return not is_recorded(trial) and not has_ablation(trial, NO_COMM)

    def _window_steps(self, window_s: float) -> int:
        return steps_in_window(window_s, self._step_s, self._options.min_steps)

    def _steps_of(self, trial: Trial) -> int:
        if not is_recorded(trial):
            return _settling(trial) + self._window_steps(min(trial.window_s or _LONGEST_S, _LONGEST_S))
        return _settling(trial) + self._recorder(trial, None, "").steps

    def _recorder(self, trial: Trial, phases: StepPhases | None, meeting: str) -> ScriptRecording:
        return ScriptRecording(
            trial=trial,
            device=self._device,
            ranks=self.ranks,
            phases=phases or StepPhases(ranges_on(self._device), ()),
            step_s=self._step_s,
            plain_step_s=self._step_s,
            meeting=meeting,
        )

    def _explanations(self, chosen: list[tuple[int, int]]) -> Generator[None, None, None]:
        """Every phase takes its steps on all ranks, also where it fails on one."""
        for number, steps in chosen:
            meeting = f"phase/{number}"
            self.ranks.meet(meeting)
            body: Recorded | None = self._phase(number, steps, _recorded_at(number))
            for _ in range(steps):
                body = self._advanced(body, number, steps)
                yield
            self._advanced(body, number, steps)

    def _advanced(self, body: Recorded | None, number: int, steps: int) -> Recorded | None:
        """The phase after one more step; None where it is over, or failed, which costs only itself."""
        if body is None:
            return None
        try:
            measurements = _next_of(body)
            if measurements is None:
                return body
            self._store(number, measurements, steps)
        except Exception as error:
            name = "the step again" if number == _AGAIN else _name_of(self._trial_of(number))
            self._record["counters"][f"{OWN_START}{name}"] = str(describe_error(error)["message"])
            self.ranks.arrive(_recorded_at(number))  # nobody waits for this rank
        return None

    def _trial_of(self, number: int) -> Trial:
        return self._trial if number == _AGAIN else Trial(settings=self._job.phases[number].settings)

    def _phase(self, number: int, steps: int, meeting: str) -> Recorded:
        trial = self._trial_of(number)
        measurements = Measurements()
        began = clocks.monotonic()
        with self._script.ablated(trial):
            for _ in range(_settling(trial)):
                yield
            if is_recorded(trial):
                with self._script.recording(self._device) as phases:
                    recording = self._recorder(trial, phases, meeting)
                    recording.check()
                    measurements = yield from recording.run()
            else:
                began = clocks.monotonic()
                counted = steps - _settling(trial)
                clock = clock_for(self._device, counted)
                clock.start()
                for _ in range(counted):
                    yield
                    clock.tick()
                clock.finish()
                measurements.samples["step_time_s"] = clock.step_times_s()
        measurements.counters |= dict(zip(WINDOW, (began, clocks.monotonic()), strict=True))
        return measurements

    def _store(self, number: int, measurements: Measurements, steps: int) -> None:
        """A record of its own; what was observed of the script is the same as in the window."""
        times_s = measurements.samples.get("step_time_s", [])
        if number == _AGAIN:
            self._record["counters"][AGAIN] = statistics.median(times_s)
            return
        main = self._record["counters"]
        counters = {name: value for name, value in main.items() if name.startswith(_OF_THE_SCRIPT)}
        counters |= self._script.explaining_counters(steps)
        tables = {**counters.pop("tables", {}), **measurements.tables}
        if times_s:
            counters["measured_steps"] = len(times_s)
            samples = main.get("measured_samples")
            if samples is not None:
                counters["measured_samples"] = round(samples * len(times_s) / main["measured_steps"])
        record = {
            **self._identity,
            "state": "done",
            "samples": measurements.samples,
            "counters": {**counters, **measurements.counters},
            "tables": tables,
        }
        path = Path(self._job.phases[number].rank_files[self.ranks.rank])
        write_atomically(path, json.dumps(record, allow_nan=False))

    def can_finish_early(self) -> bool:
        """Whether the steps so far are enough, for a script that ends by itself inside the window."""
        if self.is_over or not self._has_window or self._clock is None:
            return False
        return self._clock.finished() >= self._options.min_steps

    def fail(self, error: BaseException, optimizer_steps: int | None = None) -> None:
        """Write why there is no measurement; of an error of the script's own, after how many of its steps."""
        if not self.is_over:
            self.is_over = True
            self.ranks.give_up()
            described = {**describe_error(error), "optimizer_steps": optimizer_steps}
            self._record.update(state="failed", error=described)
            self._write()

    def end(self, code: int) -> None:
        """Leave the script."""
        self.is_over = True
        self.ranks.leave(code)

    def _check_parent(self) -> None:
        """A script whose launcher was killed must not go on by itself."""
        now = clocks.monotonic()
        if not self._job.parent or now - self._checked_parent < _ALIVE_S:
            return
        self._checked_parent = now
        try:
            os.kill(self._job.parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            pass  # on another host, or in another container

    def _write(self) -> None:
        rank = self.ranks.rank
        path = Path(self._job.directory) / f"extra-{rank}.json"
        if rank < len(self._job.rank_files):
            path = Path(self._job.rank_files[rank])
        write_atomically(path, json.dumps(self._record, allow_nan=False))


def _next_of(body: Recorded) -> Measurements | None:
    """What a phase measured, once it is over."""
    try:
        next(body)
    except StopIteration as end:
        measured: Measurements = end.value
        return measured
    return None


def _settling(trial: Trial) -> int:
    return 1 + max((_SETTLING[name] for name in _SETTLING if has_ablation(trial, name)), default=0)


def _recorded_at(number: int) -> str:
    """Where ranks meet after the recorded steps of a phase."""
    return f"phase/{number}/recorded"


def _name_of(trial: Trial) -> str:
    """What a phase is, in words."""
    if is_recorded(trial):
        return "recorded steps"
    return " and ".join(ABLATIONS[name] for name in ABLATIONS if name in trial.ablations)
