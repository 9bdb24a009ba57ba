"""Supervisor: watches the ranks of one launch, finds the one to blame, and leaves nothing running."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.catalog.measuring import Measuring
from scalescope.launch.culprit import RankFailure, find_culprit, find_hung_ranks
from scalescope.launch.launcher import Outcome, Watcher, record_from
from scalescope.launch.local.processes import RankProcess, SpawnFailed, is_stopped, signal_group
from scalescope.results.ranks.heartbeat import Heartbeats, RankStage
from scalescope.results.ranks.rank_placement import RankPlacement

_POLL_S = 0.1
_SETTLE_S = 0.3  # after a first failure: lets the others report their errors
_TERM_GRACE_S = 1.0
_KILL_LIMIT_S = 3.0  # a process inside the kernel can outlast SIGKILL; it must not hold us too
_LARGEST_LOG_BYTES = 64 << 20


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

    def record(self) -> dict[str, Any]:
        """What the rank has written so far."""
        try:
            record = json.loads(self.rank_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def finished(self) -> bool:
        return bool(self.record().get("state") == "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedLaunch:
    """What is supervised: the ranks, where their progress is read, and the time they have."""

    ranks: list[SupervisedRank]
    beats: Heartbeats
    limits: Measuring
    steps: int  # of the whole launch, until the ranks know better
    deadline: float | None = None  # on the monotonic clock: when the budget is spent
    memory_is_limited: bool = False  # of each process: a library may end one that gets no more


class Supervisor:
    """One launch from the first rank's start to the last one's end."""

    def __init__(
        self,
        launch: SupervisedLaunch,
        watcher: Watcher,
        wait: Callable[[float], None],
        sample: Callable[[], None] = lambda: None,
    ) -> None:
        self._ranks = launch.ranks
        self._beats = launch.beats
        self._limits = launch.limits
        self._steps = launch.steps
        self._deadline = launch.deadline
        self._memory_is_limited = launch.memory_is_limited
        self._watcher = watcher
        self._wait = wait
        self._sample = sample
        self._placed = False

    def run(self) -> Outcome:
        """Watch until all ranks are done, one fails, or one hangs; then end what still runs."""
        try:
            while True:
                self._observe()
                self._sample()
                if any(self._lost(rank) for rank in range(len(self._ranks))):
                    return self._failure()
                if all(rank.exit_code is not None for rank in self._ranks):
                    return Outcome(status="ok", records=self._records())
                overdue = self._overdue()
                if overdue is not None:
                    return overdue
                if self._is_over_budget():
                    return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")
                self._wait(_POLL_S)
        finally:
            self.end_all()

    def _observe(self) -> None:
        now = time.monotonic()
        for rank, process in enumerate(self._ranks):
            if process.exit_code is None:
                process.exit_code = process.process.poll()
            beat = self._beats.read(rank)
            if beat.position != process.position:
                process.position, process.moved_at = beat.position, now
            if beat.stage != process.stage:
                process.stage, process.stage_since = beat.stage, now
            _cap(process.log)
        if not self._placed and all(rank.stage >= RankStage.WARMUP for rank in self._ranks):
            self._placed = True
            self._watcher.placed(
                [
                    RankPlacement.from_record(rank, process.record())
                    for rank, process in enumerate(self._ranks)
                ]
            )
        beats = [self._beats.read(rank) for rank in range(len(self._ranks))]
        planned = max(beat.planned for beat in beats) or self._steps
        if planned:
            self._watcher.advanced(min(1.0, min(beat.completed for beat in beats) / planned))

    def _lost(self, rank: int) -> bool:
        process = self._ranks[rank]
        return process.exit_code is not None and not process.finished

    def _failure(self) -> Outcome:
        self._settle()
        rank = find_culprit(map(self._rank_failure, self._failed_ranks())).rank
        error = self._ranks[rank].record().get("error") or {}
        step = self._step(rank)
        where = "" if step is None else f" at step {step}"
        out_of_memory = bool(error.get("out_of_memory")) or self._ran_into_limit(rank, error)
        bad_input = bool(error.get("bad_input"))
        return Outcome(
            status="oom" if out_of_memory else "failed",
            reason=str(error["message"])
            if bad_input
            else f"rank {rank} {self._how_it_ended(rank, error, where)}",
            bad_input=bad_input,
            rank=rank,
            step=step,
            log=str(self._ranks[rank].log),
            records=self._records(),
        )

    def _failed_ranks(self) -> list[int]:
        """The ranks that were lost, and those that recorded an error and then did not exit."""
        return [
            rank
            for rank, process in enumerate(self._ranks)
            if self._lost(rank) or process.record().get("state") == "failed"
        ]

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and any(rank.exit_code is None for rank in self._ranks):
            self._wait(0.05)
            self._observe()

    def _rank_failure(self, rank: int) -> RankFailure:
        error = self._ranks[rank].record().get("error") or {}
        return RankFailure(
            rank=rank,
            message=str(error.get("message", "")),
            progress=self._beats.read(rank).position,
            at_s=float(error.get("at_monotonic_s", 0.0)),
        )

    def _ran_into_limit(self, rank: int, error: dict[str, Any]) -> bool:
        """Whether a library ended the rank because of its memory limit: BLAS does so without an exception."""
        code = self._ranks[rank].exit_code
        return self._memory_is_limited and not error and code is not None and code > 0

    def _how_it_ended(self, rank: int, error: dict[str, Any], where: str) -> str:
        code = self._ranks[rank].exit_code
        if error:
            return f"failed{where}: {error.get('message')}"
        if code == 0:
            return f"exited{where or ' before its first step'} with code 0 and without a result"
        if code is not None and code < 0:
            return f"was killed by {_signal_name(-code)}{where}"
        return f"exited with code {code}{where}"

    def _overdue(self) -> Outcome | None:
        now = time.monotonic()
        for rank in self._ranks:
            if rank.exit_code is not None:
                continue
            if rank.stage >= RankStage.TEARDOWN:  # also once it is done: it may block while it exits
                if self._all_leaving() and now - self._last_to_leave() > self._limits.teardown_timeout:
                    return self._teardown_hang()
            elif now - self._waiting_since(rank) > self._time_limit_s(rank):
                return self._hang(now)
        return None

    def _is_over_budget(self) -> bool:
        """Whether the budget is spent; ranks that have written their results may leave on their own."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self._all_leaving()

    def _all_leaving(self) -> bool:
        return all(rank.stage >= RankStage.TEARDOWN or rank.exit_code is not None for rank in self._ranks)

    def _last_to_leave(self) -> float:
        """Leaving may wait for the slowest rank, so the limit counts from its arrival."""
        return max(rank.stage_since for rank in self._ranks)

    def _waiting_since(self, rank: SupervisedRank) -> float:
        return rank.moved_at if rank.stage == RankStage.STEADY else rank.stage_since

    def _time_limit_s(self, rank: SupervisedRank) -> float:
        if rank.stage == RankStage.WARMUP:
            return self._limits.warmup_timeout
        if rank.stage != RankStage.STEADY:
            return self._limits.init_timeout
        if self._limits.stall_timeout is not None:
            return self._limits.stall_timeout
        slowest = max(self._beats.read(r).slowest_warmup_s for r in range(len(self._ranks)))
        return max(30.0, 20.0 * slowest)

    def _teardown_hang(self) -> Outcome:
        hung = [r for r, rank in enumerate(self._ranks) if rank.exit_code is None]
        if not all(rank.finished for rank in self._ranks):
            return self._hang(time.monotonic())
        names = ", ".join(map(str, hung))
        note = f"rank {names} did not exit within {self._limits.teardown_timeout:g} s and was killed"
        return Outcome(status="ok", records=self._records(), notes=[note])

    def _hang(self, now: float) -> Outcome:
        if self._failed_ranks():  # it blocks while it writes to its log; its error is what matters
            return self._failure()
        idle_s = now - min(rank.moved_at for rank in self._ranks)
        stopped = [number for number, rank in enumerate(self._ranks) if is_stopped(rank.process.pid)]
        hung = find_hung_ranks([rank.position for rank in self._ranks], stopped)
        step = self._step(hung[0])
        where = f"at step {step}" if step is not None else f"in {self._ranks[hung[0]].stage.name.lower()}"
        state = _hang_text(len(hung), is_stopped=bool(stopped))
        outcome = Outcome(
            status="hang",
            reason=f"{_name(hung, len(self._ranks))} {state} {where}: no progress for {idle_s:.0f} s",
            rank=hung[0] if len(hung) == 1 else None,
            step=step,
            log=str(self._ranks[hung[0]].log),
            records=self._records(),
        )
        self._dump_stacks()  # last: it sets a stopped rank going, which changes all that was just read
        return outcome

    def _step(self, rank: int) -> int | None:
        begun = self._beats.read(rank).begun
        return begun - 1 if begun else None

    def _dump_stacks(self) -> None:
        for rank in self._ranks:
            if rank.exit_code is None:
                stopped = is_stopped(rank.process.pid)
                _signal_one(rank.process.pid, signal.SIGUSR2)
                if stopped:  # it can only print while it runs, and is ended right after
                    _signal_one(rank.process.pid, signal.SIGCONT)
        self._wait(0.2)
        time.sleep(0.1)

    def _records(self) -> list[Any]:
        records = [rank.record() for rank in self._ranks]
        return [record_from(raw) for raw in records if "rank" in raw]

    def end_all(self) -> None:
        """End every rank and what it started: ask first, insist after a second."""
        for rank in self._ranks:
            if rank.exit_code is None:
                signal_group(rank.process.pid, signal.SIGTERM)
        self._wait_for_ends(_TERM_GRACE_S)
        for rank in self._ranks:
            signal_group(rank.process.pid, signal.SIGKILL)
        self._wait_for_ends(_KILL_LIMIT_S)
        for rank in self._ranks:
            _cap(rank.log)

    def _wait_for_ends(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(SpawnFailed):  # nobody reports exits any more: the signals must still go out
            while self._alive() and time.monotonic() < deadline:
                self._wait(0.02)

    def _alive(self) -> bool:
        for rank in self._ranks:
            if rank.exit_code is None:
                rank.exit_code = rank.process.poll()
        return any(rank.exit_code is None for rank in self._ranks)


def _name(ranks: list[int], world_size: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "all ranks" if len(ranks) == world_size else f"ranks {', '.join(map(str, ranks))}"


def _hang_text(count: int, *, is_stopped: bool) -> str:
    if is_stopped:
        return "is stopped by a signal" if count == 1 else "are stopped by a signal"
    return "hangs" if count == 1 else "hang"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_one(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _cap(log: Path) -> None:
    """Keep a rank that prints without end from filling the disk; it appends, so it writes on."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LARGEST_LOG_BYTES:
            os.truncate(log, _LARGEST_LOG_BYTES // 2)
