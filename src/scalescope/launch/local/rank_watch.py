"""RankWatch: how far the ranks of one launch are, and which of them fail, hang or take too long."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalescope.catalog.measuring import Measuring
from scalescope.launch.culprit import RankFailure, find_culprit, find_hung_ranks, ranks_text
from scalescope.launch.launcher import Outcome, Watcher, record_from
from scalescope.launch.local.logs import MemoryUse, cap_log
from scalescope.launch.local.processes import RankProcess, is_stopped
from scalescope.launch.probing import MemoryKills
from scalescope.results.ranks import Heartbeats, RankPlacement, RankStage
from scalescope.results.result import RankRecord


@dataclass(slots=True, kw_only=True)
class SupervisedRank:
    """A rank process with the files it writes."""

    process: RankProcess
    rank_file: Path
    log: Path
    exit_code: int | None = None
    position: tuple[int, ...] = ()
    moved_at: float = field(default_factory=time.monotonic)  # when the position last changed
    stage: RankStage = RankStage.STARTING
    stage_since: float = field(default_factory=time.monotonic)
    _version: tuple[int, ...] = ()  # of the rank file that was read last
    _record: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """What the rank has written so far."""
        try:
            status = self.rank_file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if version != self._version:
                record = json.loads(self.rank_file.read_text(encoding="utf-8"))
                self._version, self._record = version, record if isinstance(record, dict) else {}
        except (OSError, ValueError):
            return {}
        return self._record

    @property
    def measured(self) -> bool:
        """Whether its result is stored; it may go on to explain it."""
        return bool(self.record().get("state") == "done")

    @property
    def finished(self) -> bool:
        return self.measured and not self.record().get("continues")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLaunch:
    """What is supervised: the ranks, where their progress is read, and the time they have."""

    ranks: list[SupervisedRank]
    beats: Heartbeats
    limits: Measuring
    steps: int  # of the whole launch, until the ranks know better
    deadline: float | None = None  # on the monotonic clock: when the budget is spent
    memory: MemoryUse = field(default_factory=MemoryUse)
    kills: MemoryKills = field(default_factory=MemoryKills)


class RankWatch:
    """Reads what ranks report; whoever supervises them decides what follows."""

    def __init__(self, launch: SupervisedLaunch, watcher: Watcher) -> None:
        self.ranks = launch.ranks
        self.limits = launch.limits
        self._beats = launch.beats
        self._steps = launch.steps
        self._deadline = launch.deadline
        self._watcher = watcher
        self._placed = False

    def observe(self) -> None:
        """Read how far every rank is, and tell the watcher."""
        now = time.monotonic()
        for number, rank in enumerate(self.ranks):
            if rank.exit_code is None:
                rank.exit_code = rank.process.poll()
            beat = self._beats.read(number)
            if beat.position != rank.position:
                rank.position, rank.moved_at = beat.position, now
            if beat.stage != rank.stage:
                rank.stage, rank.stage_since = beat.stage, now
        for log in {rank.log for rank in self.ranks}:
            cap_log(log)
        if not self._placed and all(rank.stage >= RankStage.WARMUP for rank in self.ranks):
            self._placed = True
            self._watcher.placed(
                [RankPlacement.from_record(number, rank.record()) for number, rank in enumerate(self.ranks)]
            )
        beats = [self._beats.read(rank) for rank in range(len(self.ranks))]
        planned = max(beat.planned for beat in beats) or self._steps
        if planned:
            self._watcher.advanced(min(1.0, min(beat.completed for beat in beats) / planned))

    def records(self) -> list[RankRecord]:
        """What the ranks have written so far."""
        records = [rank.record() for rank in self.ranks]
        return [record_from(raw) for raw in records if "rank" in raw]

    def step(self, rank: int) -> int | None:
        """The step that a rank is at; None before its first."""
        begun = self._beats.read(rank).begun
        return begun - 1 if begun else None

    def completed_steps(self) -> int:
        """The steps of the rank that is furthest."""
        return max(self._beats.read(rank).completed for rank in range(len(self.ranks)))

    def is_lost(self, rank: int) -> bool:
        """Whether a rank ended without a result."""
        process = self.ranks[rank]
        return process.exit_code is not None and not process.measured

    def is_measured(self) -> bool:
        """Whether all results are stored, and some rank goes on after that."""
        goes_on = any(not rank.finished for rank in self.ranks)
        return goes_on and all(rank.measured for rank in self.ranks)

    def failed_ranks(self) -> list[int]:
        """The ranks that were lost, and those that recorded an error and then did not exit."""
        return [
            number
            for number, rank in enumerate(self.ranks)
            if self.is_lost(number) or rank.record().get("state") == "failed"
        ]

    def culprit(self, failed: Iterable[int]) -> int:
        """Of ranks that failed, the one whose failure explains the others'."""
        return find_culprit(map(self._rank_failure, failed)).rank

    def _rank_failure(self, rank: int) -> RankFailure:
        error = self.ranks[rank].record().get("error") or {}
        return RankFailure(
            rank=rank,
            message=str(error.get("message", "")),
            progress=self._beats.read(rank).position,
            at_s=float(error.get("at_monotonic_s", 0.0)),
        )

    def overdue(self) -> Literal["working", "leaving"] | None:
        """What ranks take longer for than their limits allow; None where all are in time."""
        now = time.monotonic()
        for rank in self.ranks:
            if rank.exit_code is not None:
                continue
            if rank.stage >= RankStage.TEARDOWN:  # also once it is done: it may block while it exits
                if self._all_leaving() and now - self._last_to_leave() > self.limits.teardown_timeout:
                    return "leaving"
            elif now - self._waiting_since(rank) > self.time_limit_s(rank):
                return "working"
        return None

    def is_over_budget(self) -> bool:
        """Whether the budget is spent; ranks that have written their results may leave on their own."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self._all_leaving()

    def _all_leaving(self) -> bool:
        return all(rank.stage >= RankStage.TEARDOWN or rank.exit_code is not None for rank in self.ranks)

    def _last_to_leave(self) -> float:
        """Leaving may wait for the slowest rank, so the limit counts from its arrival."""
        return max(rank.stage_since for rank in self.ranks)

    def _waiting_since(self, rank: SupervisedRank) -> float:
        return rank.moved_at if rank.stage == RankStage.STEADY else rank.stage_since

    def time_limit_s(self, rank: SupervisedRank) -> float:
        if rank.stage == RankStage.WARMUP:
            return self.limits.warmup_timeout
        if rank.stage != RankStage.STEADY:
            return self.limits.init_timeout
        if self.limits.stall_timeout is not None:
            return self.limits.stall_timeout
        slowest = max(self._beats.read(r).slowest_warmup_s for r in range(len(self.ranks)))
        return max(30.0, 20.0 * slowest)

    def hang(self, *, has_step_numbers: bool = True) -> Outcome:
        """The ranks that the others wait for, and since when; steps of a script have no numbers of ours."""
        idle_s = time.monotonic() - min(rank.moved_at for rank in self.ranks)
        stopped = [number for number, rank in enumerate(self.ranks) if is_stopped(rank.process.pid)]
        hung = find_hung_ranks([rank.position for rank in self.ranks], stopped)
        step = self.step(hung[0])
        where = f"at step {step}" if step is not None else f"in {self.ranks[hung[0]].stage.name.lower()}"
        if step is not None and not has_step_numbers:
            step, where = None, "in its training"
        state = _hang_text(len(hung), is_stopped=bool(stopped))
        return Outcome(
            status="hang",
            reason=f"{ranks_text(hung, len(self.ranks))} {state} {where}: no progress for {idle_s:.0f} s",
            rank=hung[0] if len(hung) == 1 else None,
            step=step,
            log=str(self.ranks[hung[0]].log),
            records=self.records(),
        )

    def dump_stacks(self, wait: Callable[[float], None]) -> None:
        """Let the ranks print where they are. This sets a stopped rank going: read everything else before."""
        for rank in self.ranks:
            if rank.exit_code is None and rank.process.pid > 0:
                stopped = is_stopped(rank.process.pid)
                _signal_one(rank.process.pid, signal.SIGUSR2)
                if stopped:  # it can only print while it runs, and is ended right after
                    _signal_one(rank.process.pid, signal.SIGCONT)
        wait(0.2)
        time.sleep(0.1)


def signal_name(number: int) -> str:
    """SIGKILL for 9; a number without a name is `signal 70`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hang_text(count: int, *, is_stopped: bool) -> str:
    if is_stopped:
        return "is stopped by a signal" if count == 1 else "are stopped by a signal"
    return "hangs" if count == 1 else "hang"


def _signal_one(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
