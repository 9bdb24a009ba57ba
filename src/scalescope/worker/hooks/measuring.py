"""The life of a measured script: look at it, let the engine measure its steps, write the record."""

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.files import write_atomically
from scalescope.results.provenance import SCRIPT_FILES, local_files
from scalescope.results.ranks import AGAIN, OWN_START, PHASES_TIME, AttachJob, RankStage
from scalescope.worker.engine.explaining import ExplainedLoop, Explanations
from scalescope.worker.engine.profiling import ProfiledModel, profiled
from scalescope.worker.engine.recording import is_recorded, recorded_launch
from scalescope.worker.engine.steps import Engine, LoopEnded, Steps, steps_in_window
from scalescope.worker.hooks.ranks import ScriptRanks
from scalescope.worker.process.device import describe_placement, device_name, placement_counters
from scalescope.worker.process.node import node_name
from scalescope.worker.process.position import Position
from scalescope.worker.process.rank import describe_error
from scalescope.worker.rank_profile import FAILED
from scalescope.worker.training.activity import GarbageWatch
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import RangeOf

_LOOKING_STEPS = 2  # until the modules that the script calls are known
_OF_THE_SCRIPT = (
    "observed/", "parameter", "gradient_bytes", "convolutions", "threads", "affinity", "gpu", "world_size"
)  # fmt: skip
_OF_THE_WINDOW = ("observed/first_bad_loss", "observed/seeded")  # not of what follows on it
_ALIVE_S = 1.0  # between two checks that the launcher is there


# What a number of steps consisted of; tables under "tables", and samples under "samples".
Counters = Callable[[int], dict[str, Any]]


class MeasuredScript(ExplainedLoop, Protocol):
    """What a measurement asks of the script's side."""

    def look(self, step: int) -> None:
        """A first step has ended: modules become known, levers that need them are applied."""

    def end_warmup_step(self) -> None:
        """A step of the warm-up has ended."""

    def forget(self) -> None:
        """Steps were made that are not looked at."""

    def begin_window(self) -> Counters:
        """The timed steps follow; returns what gives their counters at their end."""
        ...

    def begin_recording(self) -> Counters:
        """Recorded steps follow; returns what gives their counters at their end."""
        ...

    def marked(self, range_of: RangeOf) -> AbstractContextManager[Callable[[], None]]:
        """Inside, each part of a step has its range; returns what to call after a step."""
        ...

    def uses_loader(self) -> bool:
        """Whether batches come from a DataLoader."""
        ...

    def batches_ahead(self) -> int:
        """How many batches loader processes prepare ahead."""
        ...

    def begin_explaining(self) -> None:
        """The window is over and stored; other steps follow in the same process."""

    def profiled_model(self) -> ProfiledModel:
        """What is profiled."""
        ...

    def explaining_counters(self, steps: int) -> dict[str, Any]:
        """What is counted of ranks without communication, and tables under "tables"."""
        ...

    def finished(self) -> None:
        """The record is written."""


class ScriptMeasuring:
    """One rank's measurement; `tick` is called at the end of every step of the script."""

    def __init__(self, job: AttachJob, device: torch.device, script: MeasuredScript) -> None:
        self._job = job
        self._trial = Trial(settings=job.settings)
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
        self._checked_parent = clocks.monotonic()
        self._in_window_since: int | None = None  # steps that had been made
        self._engine = Engine(
            trial=self._trial, device=device, ranks=self.ranks, position=self.position, loop=self
        )
        self.is_over = False
        self._begin(1)
        self._check_world_size()

    def _check_ranks(self) -> None:
        if not self.ranks.are_joined:
            raise BadInput(
                f"the script's {self.ranks.world_size} ranks never joined a process group, so they "
                "train independently"
            )

    def _check_world_size(self) -> None:
        asked, ran = self._job.world_size, self.ranks.world_size
        if asked != ran:
            error = BadInput(
                f"the command ran {ran} rank{'s' if ran > 1 else ''}, but {asked} "
                f"{'were' if asked > 1 else 'was'} requested; put {{world_size}} where its launcher takes "
                "the number"
            )
            self.fail(error)
            raise error

    def _begin(self, first_look: int) -> None:
        self._life = self._measured(first_look)
        self._looks = True
        self.tick()

    def tick(self) -> None:
        """A step of the script has ended."""
        try:
            next(self._life)
        except StopIteration:  # the script's own signal handler raised in here, and it went on
            self.is_over = True

    def restart(self) -> None:
        """The script's step turned out to be another one: warm up again."""
        if not self._looks and not self.is_over:
            self._begin(_LOOKING_STEPS)

    @property
    def in_window(self) -> bool:
        """Whether timed or recorded steps are under way."""
        return self._in_window_since is not None and not self.is_over

    def alive(self, steps: int) -> None:
        """Publish that steps have ended; a script whose launcher was killed must end."""
        self.position.begin_step(steps)
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

    # The loop, as the engine sees it.

    def end_warmup_step(self) -> None:
        self._script.end_warmup_step()

    def forget(self) -> None:
        self._script.forget()

    def batches_ahead(self) -> int:
        return self._script.batches_ahead()

    def windows(self, step_s: float, made: int) -> list[int]:
        options = self._engine.options
        self._planned = steps_in_window(options.window, step_s, options.min_steps)
        return [self._planned]

    def begin_window(self) -> None:
        """Timed or recorded steps follow."""
        self._in_window_since = self.position.completed
        begin = self._script.begin_recording if is_recorded(self._trial) else self._script.begin_window
        self._counters = begin()

    def end_window(self) -> None:
        """There is one window."""

    def collect(self, measurements: Measurements, garbage: GarbageWatch | None = None) -> None:
        assert self._in_window_since is not None
        counted = self._counters(self.position.completed - self._in_window_since)
        measurements.tables = {**counted.pop("tables", {}), **measurements.tables}
        measurements.samples = {**counted.pop("samples", {}), **measurements.samples}
        measurements.counters = {**counted, **measurements.counters}

    def marked(self, range_of: RangeOf, count: int) -> AbstractContextManager[Callable[[], None]]:
        return self._script.marked(range_of)

    # Its life.

    def _measured(self, first_look: int) -> Steps[None]:
        """The whole measurement: continues at the end of every step, and yields forever once it is stored."""
        for number in range(first_look, _LOOKING_STEPS + 1):
            yield
            self.position.begin_step()
            self._script.look(number)
        self._looks = False
        if is_recorded(self._trial):
            yield from self._recorded()
        else:
            yield from self._timed()
        self._record["continues"] = False
        self._write()
        self.position.enter(RankStage.TEARDOWN)
        self._script.finished()
        while True:
            yield

    def _timed(self) -> Steps[None]:
        """The window, whose record is on disk before anything follows."""
        measured = yield from self._engine.trained()
        times_s = measured.samples["step_time_s"]
        has_ended = len(times_s) < self._planned  # the script has, in its window
        may_go_on = not has_ended and not self._trial.keeps_running
        if has_ended:
            measured.counters[FAILED] = "the script ended during its window"
        self._finish_record(measured, continues=may_go_on)
        if not may_go_on:
            return
        self._script.begin_explaining()
        profile = yield from profiled(self._engine, times_s, self._script.profiled_model)
        self._record["counters"] |= profile.counters
        self._record["tables"] |= profile.tables
        if self._job.phases:
            yield from self._explained(times_s, max(measured.samples["warmup_step_time_s"]))

    def _recorded(self) -> Steps[None]:
        """Recorded steps, which no figure of speed is made of."""
        measured = yield from recorded_launch(self._engine)
        self.collect(measured)
        self._finish_record(measured, continues=False)

    def _finish_record(self, measured: Measurements, *, continues: bool) -> None:
        if self._files:  # those that were edited since were loaded as they were
            self._files = local_files(sys.modules) | self._files
            measured.tables[SCRIPT_FILES] = [
                {"path": path, "sha256": digest} for path, digest in self._files.items()
            ]
        counters = {
            **placement_counters(self._device), "world_size": self.ranks.world_size, **measured.counters
        }  # fmt: skip
        self._record.update(
            state="done",
            samples=measured.samples,
            counters=counters,
            tables=measured.tables,
            continues=continues,
        )
        self._write()
        self.is_over = True

    def _explained(self, times_s: list[float], longest_warmup_s: float) -> Steps[None]:
        explanations = Explanations(
            engine=self._engine,
            loop=self._script,
            ranks=self.ranks,
            phases=self._job.phases,
            store=self._store,
            has_loader=self._script.uses_loader(),
            step_s=statistics.fmean(times_s),
            plain_step_s=statistics.median(times_s),
            longest_warmup_s=longest_warmup_s,
        )
        yield from explanations.measured()
        counters = self._record["counters"]
        counters |= {f"{OWN_START}{name}": reason for name, reason in explanations.reasons.items()}
        counters[PHASES_TIME] = explanations.took_s
        if explanations.again_s is not None:
            counters[AGAIN] = explanations.again_s

    def _store(self, number: int, measured: Measurements, steps: int) -> None:
        """A record of its own; what was observed of the script is the same as in the window."""
        times_s = measured.samples.get("step_time_s", [])
        main = self._record["counters"]
        counters = {
            name: value
            for name, value in main.items()
            if name.startswith(_OF_THE_SCRIPT) and name not in _OF_THE_WINDOW
        }
        counters |= self._script.explaining_counters(steps)
        tables = {**counters.pop("tables", {}), **measured.tables}
        if times_s:
            counters["measured_steps"] = len(times_s)
            samples = main.get("measured_samples")
            if samples is not None:
                counters["measured_samples"] = round(samples * len(times_s) / main["measured_steps"])
        record = {
            **self._identity,
            "state": "done",
            "samples": measured.samples,
            "counters": {**counters, **measured.counters},
            "tables": tables,
        }
        path = Path(self._job.phases[number].rank_files[self.ranks.rank])
        write_atomically(path, json.dumps(record, allow_nan=False))

    def end_with_script(self) -> None:
        """The script ends: keep the steps of its window if they are enough."""
        if self.in_window and not is_recorded(self._trial):
            with contextlib.suppress(LoopEnded, StopIteration):  # too few, or given up before
                self._life.throw(LoopEnded)

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

    def _write(self) -> None:
        rank = self.ranks.rank
        path = Path(self._job.directory) / f"extra-{rank}.json"
        if rank < len(self._job.rank_files):
            path = Path(self._job.rank_files[rank])
        write_atomically(path, json.dumps(self._record, allow_nan=False))
