"""CommandSupervisor: watches a training command and its ranks, and says what became of them."""

import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.errors import Interrupted
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.launch.local.command.evidence import (
    NO_INPUT,
    CommandEvidence,
    extra_ranks,
    read_reports,
)
from scalescope.launch.local.command.processes import CommandProcess
from scalescope.launch.local.command.views import Writes
from scalescope.launch.local.logs import cap_log
from scalescope.launch.local.rank_watch import RankWatch, SupervisedLaunch
from scalescope.quantities import counted, data_size
from scalescope.results.ranks import RankStage, is_secondary_error
from scalescope.results.result import RankRecord

_POLL_S = 0.1
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # a training may go on after them
_SPACE_LOOK_S = 1.0  # between two checks of what the command has written
_SETTLE_S = 2.0  # after a rank's error: lets the others report theirs, and the launcher end
_FILES_APPEAR_S = 60.0  # the longest that NFS keeps what it knows of a folder


class RankOfCommand:
    """A rank of a command, as far as it can be seen: its record has its process id."""

    def __init__(self, command: CommandProcess) -> None:
        self._command = command
        self.pid = 0  # unknown so far

    def poll(self) -> int | None:
        return self._command.exit_code

    def identify(self, pid: object) -> None:
        """Take the id from the rank's record, if the process is one of the command's."""
        if self.pid == 0 and isinstance(pid, int) and self._command.has(pid):
            self.pid = pid


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedCommand:
    """What is supervised: the command, its ranks, and where its processes leave reports."""

    trial: Trial
    process: CommandProcess
    ranks: Sequence[RankOfCommand]
    launch: SupervisedLaunch
    directory: Path
    log: Path
    on_one_host: bool = True  # otherwise a network file system shows what ranks wrote, later
    writes: Writes | None = None  # where what the command writes is kept apart


class CommandSupervisor:
    """One launch of a command from its start to the end of the last process."""

    def __init__(
        self,
        command: SupervisedCommand,
        watcher: Watcher,
        sample: Callable[[], None] = lambda: None,
        measured: Callable[[Sequence[RankRecord]], None] = lambda records: None,  # once all ranks are done
    ) -> None:
        self._command = command
        self._process = command.process
        self._keeps_running = command.trial.keeps_running
        self._watch = RankWatch(command.launch, watcher)
        self._sample = sample
        self._measured = measured
        self._measured_at: float | None = None
        self._is_told = False  # that all ranks are measured
        self._space_looked_at = time.monotonic()

    def run(self) -> Outcome:
        """Watch until there is a result or a reason for none."""
        if self._keeps_running:
            return self._run_on()
        try:
            return self._result()
        except Interrupted as interruption:
            if not self._is_measured():
                raise
            # What was asked for is stored already; only what explains it is not.
            return Outcome(status="ok", records=self._watch.records(), signum=interruption.signum)
        finally:
            self._process.end(self._watch.limits.end_timeout)
            cap_log(self._command.log)

    def _result(self) -> Outcome:
        while True:
            self._observe()
            outcome = self._outcome()
            if outcome is not None:
                return dataclasses.replace(outcome, records=self._watch.records())
            time.sleep(_POLL_S)

    def _run_on(self) -> Outcome:
        """Watch a command until it exits, and pass signals on. scalescope never ends it."""
        with self._process.passing_signals_on() as passed_on:
            outcome = self._result()
        ending = [number for number in passed_on if number not in _WARNINGS]
        return dataclasses.replace(outcome, signum=ending[0] if ending else None)

    def _observe(self) -> None:
        if self._measured_at is not None:
            if not self._keeps_running:
                cap_log(self._command.log)
            return
        self._watch.observe()
        for rank, supervised in zip(self._command.ranks, self._watch.ranks, strict=True):
            rank.identify(supervised.record().get("pid"))
        self._sample()
        if not self._is_told and self._is_measured():
            self._is_told = True
            self._measured(self._watch.records())
        is_over = self._process.exit_code is not None and self._is_measured()
        if is_over or all(rank.finished for rank in self._watch.ranks):
            self._measured_at = time.monotonic()

    def _is_measured(self) -> bool:
        """Whether all results are stored; what explains them may still follow."""
        return all(rank.measured for rank in self._watch.ranks)

    def _outcome(self) -> Outcome | None:
        """How the launch ended; None while it goes on."""
        if self._keeps_running and self._process.exit_code is None:
            return None
        ran = self._wrong_world_size()
        if ran is not None:
            return self._evidence().wrong_world_size(ran)
        if self._measured_at is not None:
            return self._after_measuring(self._measured_at)
        if self._watch.failed_ranks():
            return self._failure()
        ended = self._overdue() or self._over_budget() or self._over_space()
        if ended is not None and self._is_measured():  # what only explains costs itself alone
            return Outcome(status="ok", notes=[f"the breakdown of the step is incomplete: {ended.reason}"])
        return ended

    def _over_space(self) -> Outcome | None:
        """That the command has filled the space for what it writes."""
        writes, now = self._command.writes, time.monotonic()
        if writes is None or now - self._space_looked_at < _SPACE_LOOK_S:
            return None
        self._space_looked_at = now
        if writes.written_bytes() <= writes.limit_bytes:
            return None
        reason = (
            f"the command wrote more than {data_size(writes.limit_bytes)}, half of the free space of "
            f"{writes.view.folder}; set TMPDIR to a larger disk, or use --allow-writes"
        )
        return Outcome(status="failed", reason=reason, bad_input=True, log=str(self._command.log))

    def _over_budget(self) -> Outcome | None:
        if not self._watch.is_over_budget():
            return None
        return Outcome(status="interrupted", reason="the budget is spent", stopped_by="budget")

    def _after_measuring(self, measured_at: float) -> Outcome | None:
        code, limit_s = self._process.exit_code, self._watch.limits.teardown_timeout
        if code is not None:
            note = f"the command ended with code {code} after it was measured"
            return Outcome(status="ok", notes=[note] if code else [])
        if time.monotonic() - measured_at <= limit_s:
            return None
        note = f"the command did not end within {limit_s:g} s after its ranks were done, and was killed"
        return Outcome(status="ok", notes=[note])

    def _wrong_world_size(self) -> int | None:
        """The number of ranks that the command runs, where it is another than was asked for."""
        asked, extra = self._command.trial.world_size, extra_ranks(self._command.directory)
        records = [
            rank.record()
            for rank in self._watch.ranks
            # Before its first step it may not know the others yet; one that failed has made it.
            if rank.stage >= RankStage.WARMUP or rank.record().get("state") in ("done", "failed")
        ]
        sizes = [record.get("world_size") for record in (*extra, *records)]
        ran = max((size for size in sizes if isinstance(size, int)), default=asked)
        if extra:
            ran = max(ran, asked + len(extra))
        return None if ran == asked else ran

    def _failure(self) -> Outcome | None:
        """What the rank reported that failed first, or how the command ended; None where none failed."""
        self._settle()
        if self._finished_late():
            return None
        code = self._process.exit_code
        reported = self._reported()
        culprit = self._watch.culprit(reported) if reported else None
        if culprit is None or (code and is_secondary_error(self._message_of(culprit))):
            return self._evidence().explain_end(code or 0)
        return self._rank_failure(culprit)

    def _settle(self) -> None:
        """Let the others report, and the command end; a request that a rank refuses needs no more."""
        deadline = time.monotonic() + _SETTLE_S
        while self._process.exit_code is None and time.monotonic() < deadline:
            if any(self._error_of(rank).get("bad_input") for rank in self._reported()):
                break
            time.sleep(0.05)
        self._watch.observe()

    def _finished_late(self) -> bool:
        """Wait for what ranks of other hosts wrote before a command ended well; whether all had finished."""
        if self._command.on_one_host or self._process.exit_code != 0 or not self._watch.records():
            return False
        deadline = time.monotonic() + _FILES_APPEAR_S
        folders = {rank.rank_file.parent for rank in self._watch.ranks}
        while not self._is_measured():
            if self._reported() or time.monotonic() > deadline:
                return False
            for folder in folders:
                next(folder.iterdir(), None)  # makes such a file system look again
            time.sleep(_POLL_S)
        return True

    def _reported(self) -> list[int]:
        """The ranks that failed and wrote why."""
        return [rank for rank in self._watch.failed_ranks() if self._error_of(rank)]

    def _rank_failure(self, rank: int) -> Outcome:
        error = self._error_of(rank)
        steps = error.get("optimizer_steps")
        steps = steps if isinstance(steps, int) else None
        where = "" if steps is None else f" after {counted(steps, 'optimizer step')}"
        bad_input = bool(error.get("bad_input"))
        message = self._message_of(rank)
        if message.startswith(NO_INPUT):
            return self._evidence().without_input(f"rank {rank} failed{where}: {message}")
        return Outcome(
            status="oom" if error.get("out_of_memory") else "failed",
            reason=message if bad_input else f"rank {rank} failed{where}: {message}",
            bad_input=bad_input,
            rank=rank,
            step=steps,
            log=str(self._command.log),
        )

    def _error_of(self, rank: int) -> dict[str, object]:
        return self._watch.ranks[rank].record().get("error") or {}

    def _message_of(self, rank: int) -> str:
        return str(self._error_of(rank).get("message"))

    def _overdue(self) -> Outcome | None:
        if self._watch.overdue() is None:
            return None
        stages = [rank.stage for rank in self._watch.ranks]
        if min(stages) < RankStage.WARMUP:
            not_loaded = self._evidence().not_loaded()
            if not_loaded is not None:
                return not_loaded
        if max(stages) < RankStage.WARMUP:
            reason = (
                f"the command made no training step within {self._watch.limits.init_timeout:g} s; "
                "--init-timeout gives it longer"
            )
            outcome = Outcome(status="hang", reason=reason, log=str(self._command.log))
        else:
            outcome = self._watch.hang(has_step_numbers=False)
        self._watch.dump_stacks(time.sleep)
        return outcome

    def _evidence(self) -> CommandEvidence:
        reports = read_reports(self._command.directory)
        reported = {report.rank for report in reports}
        return CommandEvidence(
            trial=self._command.trial,
            processes=reports,
            silent_ranks=[
                number
                for number, rank in enumerate(self._watch.ranks)
                if number not in reported and not rank.record()
            ],
            steps=self._watch.completed_steps(),
            log=self._command.log,
            view=None if self._command.writes is None else self._command.writes.view.kind,
            kills=self._command.launch.kills,
        )
