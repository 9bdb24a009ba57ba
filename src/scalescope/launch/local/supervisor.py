"""Supervisor: watches the ranks of one launch, finds the one to blame, and leaves nothing running."""

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

from scalescope.errors import Interrupted
from scalescope.launch.culprit import ranks_text
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.launch.local.logs import cap_log
from scalescope.launch.local.processes import SpawnFailed, signal_group
from scalescope.launch.local.rank_watch import RankWatch, SupervisedLaunch, signal_name

_POLL_S = 0.1
_POLL_MEMORY_S = 0.01  # a rank under a memory limit may fill it and crash in the time of a few steps
_SETTLE_S = 0.3  # after a first failure: lets the others report their errors
_TERM_GRACE_S = 1.0
_INCOMPLETE = "tries after the window are incomplete"
_KILL_LIMIT_S = 3.0  # a process inside the kernel can outlast SIGKILL; it must not hold us too


class Supervisor:
    """One launch from the first rank's start to the last one's end."""

    def __init__(
        self,
        launch: SupervisedLaunch,
        watcher: Watcher,
        wait: Callable[[float], None],
        sample: Callable[[], None] = lambda: None,
    ) -> None:
        self._watch = RankWatch(launch, watcher)
        self._ranks = launch.ranks
        self._limits = launch.limits
        self._memory = launch.memory
        self._kills = launch.kills
        self._wait = wait
        self._sample = sample

    def run(self) -> Outcome:
        """Watch until all ranks are done, one fails, or one hangs; then end what still runs."""
        try:
            while True:
                self._watch.observe()
                self._memory.sample(rank.process.pid for rank in self._ranks if rank.exit_code is None)
                self._sample()
                if any(self._watch.is_lost(rank) for rank in range(len(self._ranks))):
                    return self._failure()
                if all(rank.exit_code is not None for rank in self._ranks):
                    return Outcome(status="ok", records=self._watch.records())
                overdue = self._watch.overdue()
                if (overdue or self._watch.is_over_budget()) and self._watch.is_measured():
                    return Outcome(status="ok", records=self._watch.records(), notes=[_INCOMPLETE])
                if overdue is not None:
                    return self._teardown_hang() if overdue == "leaving" else self._hang()
                if self._watch.is_over_budget():
                    return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")
                self._wait(_POLL_S if self._memory.per_rank is None else _POLL_MEMORY_S)
        except SpawnFailed:  # the ranks end with the process that started them; what they finished is kept
            if not all(rank.finished for rank in self._ranks):
                raise
            return Outcome(status="ok", records=self._watch.records())
        except Interrupted as interruption:
            if not self._watch.is_measured():
                raise
            # What was asked for is stored already; only what was tried after it is not.
            return Outcome(
                status="ok",
                records=self._watch.records(),
                notes=[_INCOMPLETE],
                signum=interruption.signum,
            )
        finally:
            self.end_all()

    def _failure(self) -> Outcome:
        self._settle()
        rank = self._watch.culprit(self._watch.failed_ranks())
        error = self._ranks[rank].record().get("error") or {}
        step = self._watch.step(rank)
        where = "" if step is None else f" at step {step}"
        out_of_memory = bool(error.get("out_of_memory")) or self._ran_into_limit(rank, error)
        out_of_memory = out_of_memory or (not error and self._died_of_memory(rank))
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
            records=self._watch.records(),
        )

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and any(rank.exit_code is None for rank in self._ranks):
            self._wait(0.05)
            self._watch.observe()

    def _ran_into_limit(self, rank: int, error: dict[str, Any]) -> bool:
        """Whether a library ended the rank because of its memory limit: BLAS does so without an exception."""
        code = self._ranks[rank].exit_code
        return self._memory.per_rank is not None and not error and code is not None and code > 0

    def _died_of_memory(self, rank: int) -> bool:
        """Whether the kernel's counter, or what the rank had allocated, explains the signal that ended it."""
        process = self._ranks[rank]
        return self._kills.ended(process.exit_code) or bool(self._evidence(rank))

    def _evidence(self, rank: int) -> str:
        process = self._ranks[rank]
        return self._memory.evidence(process.process.pid, process.exit_code)

    def _how_it_ended(self, rank: int, error: dict[str, Any], where: str) -> str:
        code = self._ranks[rank].exit_code
        if error:
            return f"failed{where}: {error.get('message')}"
        if code == 0:
            return f"exited{where or ' before its first step'} with code 0 and without a result"
        if code is not None and code < 0:
            evidence = self._evidence(rank)
            why = f": out of memory, {evidence}" if evidence else self._kills.text(code)
            return f"was killed by {signal_name(-code)}{where}{why}"
        return f"exited with code {code}{where}"

    def _teardown_hang(self) -> Outcome:
        hung = [r for r, rank in enumerate(self._ranks) if rank.exit_code is None]
        if not all(rank.finished for rank in self._ranks):
            return self._hang()
        were = "was" if len(hung) == 1 else "were"
        names = ranks_text(hung, len(self._ranks))
        self._watch.dump_stacks(self._wait)
        note = f"{names} did not exit within {self._limits.teardown_timeout:g} s and {were} killed"
        return Outcome(status="ok", records=self._watch.records(), notes=[note])

    def _hang(self) -> Outcome:
        if self._watch.failed_ranks():  # it blocks while it writes to its log; its error is what matters
            return self._failure()
        outcome = self._watch.hang()
        self._watch.dump_stacks(self._wait)
        return outcome

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
            cap_log(rank.log)

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
